"""Collectives among some of the ranks.

torchrun --nproc-per-node 4 examples/subgroups.py [--backend ring|gloo|nccl]
python examples/subgroups.py
"""

import torch
import torch.distributed as dist
from launch import device, launch, say, title


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()

    title("a sum in the group of ranks 1 and 3")
    group = dist.new_group([1, 3])  # every rank calls it, members or not
    tensor = torch.tensor([float(rank)], device=device())
    if rank in (1, 3):
        dist.all_reduce(tensor, group=group)
    say(f"{rank} -> {tensor.item():.0f}")
    assert tensor.item() == (4 if rank in (1, 3) else rank)

    title("a sum in each half, then the larger of the two")
    halves = [range(world_size // 2), range(world_size // 2, world_size)]
    groups = [dist.new_group(list(half)) for half in halves]
    mine = 0 if rank in halves[0] else 1
    tensor = torch.tensor([float(rank)], device=device())
    dist.all_reduce(tensor, group=groups[mine])
    of_half = tensor.item()
    assert of_half == sum(halves[mine])
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    say(f"{rank} -> {of_half:.0f} in its half -> {tensor.item():.0f}")
    assert tensor.item() == sum(halves[1])


if __name__ == "__main__":
    launch(main, at_least=4)
