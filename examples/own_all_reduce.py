"""An all-reduce of one's own: a line, added up from both ends to the middle and sent back.

torchrun --nproc-per-node 4 examples/own_all_reduce.py
python examples/own_all_reduce.py
"""

import torch
import torch.distributed as dist
from launch import launch, say, title

import ringcomm
from ringcomm.plan import Plan, Step, Transfer


def line(rank: int, world_size: int) -> Plan:
    """What rank does: its neighbours are rank - 1 and rank + 1, and the ends have but one.

    Invariant: what a rank sends towards the middle is the sum over itself and all ranks behind it.
    What it sends away from the middle is the sum over all.
    """
    middle = world_size // 2
    neighbours = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < world_size]
    behind = [peer for peer in neighbours if abs(peer - middle) > abs(rank - middle)]
    ahead = [peer for peer in neighbours if peer not in behind]
    return Plan(
        num_chunks=1,
        steps=[
            Step(recvs=[Transfer(peer, 0, reduce=True) for peer in behind]),
            Step(sends=[Transfer(peer, 0) for peer in ahead]),
            Step(recvs=[Transfer(peer, 0) for peer in ahead]),
            Step(sends=[Transfer(peer, 0) for peer in behind]),
        ],
    )


ringcomm.plan.register("all_reduce", "line", line)


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()

    title("proved for every group of up to 64 ranks")
    for size in range(1, 65):
        ringcomm.plan.all_reduce("line", world_size=size).verify()

    title("what rank 1 does")
    if rank == 0 and world_size > 1:
        print(ringcomm.plan.all_reduce("line", world_size=world_size).program(1))

    title("the sum, along the line")
    group = ringcomm.new_group(algorithm="line")
    numbers = torch.full((100_000,), rank + 1.0)
    dist.all_reduce(numbers, group=group)
    say(f"{rank + 1} -> {numbers[0].item():g}")
    assert torch.all(numbers == world_size * (world_size + 1) / 2)
    dist.destroy_process_group(group)


if __name__ == "__main__":
    launch(main)
