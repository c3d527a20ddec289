"""Every collective once: what each rank has before, and what it has afterwards.

torchrun --nproc-per-node 4 examples/playbook_collectives.py [--backend ring|gloo|nccl]
python examples/playbook_collectives.py
"""

import time

import torch
import torch.distributed as dist
from launch import device, launch, say, title


def full(value: float) -> torch.Tensor:
    return torch.full((3,), float(value), device=device())


def empty_list() -> list[torch.Tensor]:
    return [torch.empty(3, device=device()) for _ in range(dist.get_world_size())]


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everyone = range(world_size)
    total = sum(r + 1 for r in everyone)

    title("broadcast: rank 0's tensor goes to everyone")
    tensor = torch.arange(1.0, 4.0, device=device()) if rank == 0 else full(0)
    before = tensor.tolist()
    dist.broadcast(tensor, src=0)
    say(f"{before} -> {tensor.tolist()}")
    assert tensor.tolist() == [1, 2, 3]

    title("reduce: rank 0 gets the sum")
    tensor = full(rank + 1)
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.SUM)
    if rank == 0:  # the others' tensors are undefined now
        assert tensor.tolist() == [total] * 3
    say(f"{full(rank + 1).tolist()} -> {tensor.tolist() if rank == 0 else 'undefined'}")

    title("all-reduce: everyone gets the sum")
    tensor = full(rank + 1)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    say(f"{full(rank + 1).tolist()} -> {tensor.tolist()}")
    assert tensor.tolist() == [total] * 3

    title("gather: rank 0 gets everyone's tensor")
    gathered = empty_list() if rank == 0 else None
    dist.gather(full(rank + 1), gathered, dst=0)
    if gathered is not None:
        assert [t.tolist() for t in gathered] == [[r + 1] * 3 for r in everyone]
    say(f"{full(rank + 1).tolist()} -> {[t.tolist() for t in gathered or []]}")

    title("all-gather: everyone gets everyone's tensor")
    gathered = empty_list()
    dist.all_gather(gathered, full(rank + 1))
    say(f"{full(rank + 1).tolist()} -> {[t.tolist() for t in gathered]}")
    assert [t.tolist() for t in gathered] == [[r + 1] * 3 for r in everyone]

    title("scatter: rank 0 has a tensor for each rank")
    parts = [full(10 * (r + 1)) for r in everyone] if rank == 0 else None
    tensor = full(0)
    dist.scatter(tensor, parts, src=0)
    say(f"{[t.tolist() for t in parts or []]} -> {tensor.tolist()}")
    assert tensor.tolist() == [10 * (rank + 1)] * 3

    title(
        "reduce-scatter: everyone has a tensor for each rank; rank r gets the sum of those for it"
    )
    inputs = [full((rank + 1) ** (r + 1)) for r in everyone]
    tensor = full(0)
    dist.reduce_scatter(tensor, inputs, op=dist.ReduceOp.SUM)
    say(f"{[t.tolist() for t in inputs]} -> {tensor.tolist()}")
    assert tensor.tolist() == [sum((r + 1) ** (rank + 1) for r in everyone)] * 3

    title("barrier: everyone waits for the slowest")
    begin = time.monotonic()
    time.sleep(0.1 * rank)
    came = time.monotonic()  # a clock that all processes of a host share
    dist.barrier()
    left = time.monotonic()
    arrivals = [torch.zeros(1, dtype=torch.float64, device=device()) for _ in everyone]
    dist.all_gather(arrivals, torch.full_like(arrivals[0], came))
    say(f"came after {came - begin:.3f} s, left after {left - begin:.3f} s")
    assert left >= max(arrival.item() for arrival in arrivals)


if __name__ == "__main__":
    launch(main)
