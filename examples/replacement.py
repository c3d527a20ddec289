"""A replacement: of four ranks one is killed, and another process takes its place.

    python examples/replacement.py

The process that starts the ranks also says which ones belong together: a generation is a number in
the store, and all ranks of a generation use its name as the prefix of their keys. When a rank dies,
the starter starts another one with the same number and begins the next generation. The survivors
join it when they notice; the newcomer gets their parameters before it takes part.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal

import torch
import torch.distributed as dist
from going_on import LAST_STEP, RANKS, STEPS, VICTIM, Trainer, die_in_backward
from launch import TIMEOUT, say

import ringcomm  # noqa: F401  (registers "ring")


def join(store: dist.Store, rank: int, generation: int) -> None:
    store.wait([f"generation {generation}"], TIMEOUT)
    dist.init_process_group(
        "ring",
        store=dist.PrefixStore(f"generation {generation}", store),
        rank=rank,
        world_size=RANKS,
        timeout=TIMEOUT,
    )


def run(rank: int, port: int, generation: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    join(store, rank, generation)
    trainer = Trainer()
    trainer.catch_up()  # a newcomer from the others
    trainer.join()
    first_step = trainer.step
    while trainer.step < STEPS:
        if rank == VICTIM and trainer.step == LAST_STEP and generation == 0:
            die_in_backward(trainer.network)
        try:
            trainer.train()
        except dist.DistBackendError:
            dist.destroy_process_group()
            generation += 1
            join(store, rank, generation)
            trainer.catch_up()
            trainer.join()
    say(
        f"process {os.getpid()} trained from step {first_step} to {STEPS}, "
        f"loss {trainer.losses[0]:.2f} -> {trainer.losses[-1]:.2f}"
    )
    assert dist.get_world_size() == RANKS
    assert trainer.losses[-1] < 0.7 and (first_step > 0) == (rank == VICTIM)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spawn = multiprocessing.get_context("spawn")

    def start(rank: int, generation: int) -> multiprocessing.process.BaseProcess:
        process = spawn.Process(target=run, args=(rank, store.port, generation))
        process.start()
        return process

    generation = 0
    ranks = {rank: start(rank, generation) for rank in range(RANKS)}
    store.set(f"generation {generation}", "")
    while ranks:
        multiprocessing.connection.wait([process.sentinel for process in ranks.values()])
        for rank, process in list(ranks.items()):
            if process.is_alive():
                continue
            process.join()
            del ranks[rank]
            if process.exitcode == -signal.SIGKILL:
                generation += 1
                ranks[rank] = start(rank, generation)
                store.set(f"generation {generation}", "")
                print(f"rank {rank} was killed; generation {generation} begins", flush=True)
            else:
                assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"


if __name__ == "__main__":
    main()
