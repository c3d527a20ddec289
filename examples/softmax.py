"""The softmax of a vector that is divided over the ranks: a MAX, then a SUM.

torchrun --nproc-per-node 4 examples/softmax.py [--backend ring|gloo|nccl]
python examples/softmax.py
"""

import torch
import torch.distributed as dist
from launch import device, launch, say, title

PER_RANK = 5


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """This rank's part of the softmax of all ranks' logits.

    exp(x - c) / sum exp(x - c) is the same for every c; with the largest logit for c, no
    exponential is larger than 1, and none overflows.
    """
    largest = logits.max()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    exponentials = torch.exp(logits - largest)
    total = exponentials.sum()
    dist.all_reduce(total, dist.ReduceOp.SUM)
    return exponentials / total


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    logits = 1000 + 3 * torch.randn(world_size * PER_RANK, dtype=torch.float64)
    expected = torch.softmax(logits, 0).chunk(world_size)[rank].to(device())

    title("softmax over all ranks; alone, exp(1000) overflows")
    part = softmax(logits.chunk(world_size)[rank].to(device()))
    total = part.sum()
    dist.all_reduce(total)
    say(f"{[round(p, 4) for p in part.tolist()]}, its part of 1 is {part.sum():.4f}")
    assert abs(total.item() - 1) < 1e-14
    torch.testing.assert_close(part, expected, rtol=1e-14, atol=0)


if __name__ == "__main__":
    launch(main)
