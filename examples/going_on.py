"""Going on after a death: four ranks train, one is killed in the middle of a step, three go on.

    python examples/going_on.py

The store at which the ranks meet lives in the process that starts them, so that it outlives every
rank. (Under torchrun the store would be torchrun's own, but it ends all ranks when one fails.)
"""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from data_parallel import digits
from launch import TIMEOUT, say
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ringcomm

RANKS, STEPS, PER_RANK = 4, 40, 32
VICTIM, LAST_STEP = 2, 15  # rank 2 does not survive its step 15


class Trainer:
    """One rank's network, optimizer and data, and how many steps it has done."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.step = 0
        self.losses: list[float] = []

    def join(self) -> None:
        """Makes what depends on the group: DDP and the sampler, for its ranks and their number."""
        self.replicated = DistributedDataParallel(self.network)
        self.batches = self.deal()

    def deal(self) -> Iterator[list[torch.Tensor]]:
        for epoch in itertools.count(self.step):
            sampler = DistributedSampler(digits(), drop_last=True)  # of the default group
            sampler.set_epoch(epoch)
            yield from DataLoader(digits(), PER_RANK, sampler=sampler, drop_last=True)

    def train(self) -> None:
        """One step. If it raises, the parameters are those before it."""
        images, labels = next(self.batches)
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.replicated(images), labels)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.step += 1

    def catch_up(self) -> None:
        """Gives all ranks the state of the one that has done the most steps.

        A death reaches some ranks before an operation is complete, and some after it.
        """
        steps: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(steps, self.step)
        state: list[Any] = [
            {
                "step": self.step,
                "network": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
        ]
        dist.broadcast_object_list(state, src=steps.index(max(steps)))
        self.step = state[0]["step"]
        self.network.load_state_dict(state[0]["network"])
        self.optimizer.load_state_dict(state[0]["optimizer"])


def die_in_backward(network: nn.Module) -> None:
    """The process is killed while backward runs, as some of the gradients are on their way."""
    first = next(iter(network.parameters()))
    first.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))


def run(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("ring", store=store, rank=rank, world_size=RANKS, timeout=TIMEOUT)
    trainer = Trainer()
    trainer.join()
    while trainer.step < STEPS:
        if rank == VICTIM and trainer.step == LAST_STEP:
            die_in_backward(trainer.network)
        try:
            trainer.train()
        except dist.DistBackendError as error:
            ringcomm.shrink()  # get_rank() and get_world_size() are the new ones
            trainer.catch_up()
            trainer.join()
            say(f"was rank {rank}, goes on from step {trainer.step}")
            if dist.get_rank() == 0:
                print(f"  because of: {error}", flush=True)
    before, after = trainer.losses[LAST_STEP - 1], trainer.losses[-1]
    say(f"loss {trainer.losses[0]:.2f} -> {before:.2f}, a death, -> {after:.2f}")
    assert dist.get_world_size() == RANKS - 1
    assert after < before < trainer.losses[0]
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=run, args=(rank, store.port)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    codes = [process.exitcode for process in ranks]
    assert codes == [0, 0, -signal.SIGKILL, 0], codes


if __name__ == "__main__":
    main()
