"""The collectives that training stands on: all-reduce, reduce-scatter, all-gather (and barrier).

torchrun --nproc-per-node 4 examples/collective_operations.py [--backend ring|gloo|nccl]
python examples/collective_operations.py
"""

import torch
import torch.distributed as dist
from launch import all_gather_single, device, launch, reduce_scatter_single, say, title


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ranks = torch.arange(world_size, dtype=torch.float32, device=device())

    title("all-reduce: everyone gets the sum")
    tensor = torch.tensor([0.0, 1, 2, 3], device=device()) + rank
    before = tensor.tolist()
    dist.barrier()  # waits until every rank is here
    dist.all_reduce(tensor, dist.ReduceOp.SUM)
    say(f"{before} -> {tensor.tolist()}")
    for index in range(4):
        assert tensor[index] == sum(index + r for r in range(world_size))

    title("reduce-scatter: rank r gets part r of the sum")
    input = ranks + rank
    own = torch.empty(1, device=device())
    reduce_scatter_single(own, input)
    say(f"{input.tolist()} -> {own.tolist()}")
    assert own.item() == world_size * rank + ranks.sum()

    title("all-gather: everyone gets all parts")
    whole = torch.empty(world_size, device=device())
    all_gather_single(whole, own)
    say(f"{own.tolist()} -> {whole.tolist()}")
    assert torch.equal(whole, world_size * ranks + ranks.sum())

    title("all-reduce = reduce-scatter + all-gather")
    torch.manual_seed(rank)
    values = torch.randn(world_size * 100_000, device=device())
    part = torch.empty(100_000, device=device())
    in_two = torch.empty_like(values)
    reduce_scatter_single(part, values)
    all_gather_single(in_two, part)
    in_one = values.clone()
    dist.all_reduce(in_one)
    if dist.get_backend() == "ring":  # where the one is made of the other two
        assert torch.equal(in_one, in_two)
        say("the same bits")
    else:  # others may add in another order
        torch.testing.assert_close(in_one, in_two)
        say(f"max difference {(in_one - in_two).abs().max():.1e}")


if __name__ == "__main__":
    launch(main)
