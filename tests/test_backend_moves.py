"""Collectives that only move data: every dtype torch knows, every count, every bit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from values import MOVED, assert_same_bits, values

COUNTS = [0, 1, 3, 131]
LARGE_NBYTES = [32 << 10, (32 << 10) + 16, (3 << 20) + 16]
STREAMED_NBYTES = (32 << 20) + 13  # from a peer: outputs that are written around the caches


def own_values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bits, so that each rank's differ and no value is special."""
    nbytes = values(rank, count * dtype.itemsize, torch.int64).to(torch.uint8)
    if dtype == torch.bool:
        nbytes %= 2
    return nbytes.view(dtype)


def check_all(rank: Rank, count: int, dtype: torch.dtype) -> None:
    n = rank.world_size
    inputs = [own_values(r, count, dtype) for r in range(n)]
    own = inputs[rank.rank]
    root = count % n
    case = f"{count} {dtype}"

    def empties() -> list[torch.Tensor]:
        return [torch.empty(count, dtype=dtype) for _ in range(n)]

    outputs = empties()
    dist.all_gather(outputs, own)
    for output, expected in zip(outputs, inputs, strict=True):
        assert_same_bits(output, expected, f"all_gather of {case}")

    output = torch.empty(n * count, dtype=dtype)
    dist.all_gather_into_tensor(output, own)
    assert_same_bits(output, torch.cat(inputs), f"all_gather_into_tensor of {case}")
    in_place = torch.zeros(n * count, dtype=torch.uint8).repeat_interleave(dtype.itemsize)
    in_place = in_place.view(dtype).view(n, count)
    in_place[rank.rank].copy_(own)
    dist.all_gather_into_tensor(in_place, in_place[rank.rank])
    assert_same_bits(in_place.view(-1), torch.cat(inputs), f"all_gather in place of {case}")

    tensor = own.clone()
    dist.broadcast(tensor, root)
    assert_same_bits(tensor, inputs[root], f"broadcast of {case}")

    outputs = empties()
    dist.gather(own, outputs if rank.rank == root else None, dst=root)
    for output, expected in zip(outputs, inputs, strict=True):
        if rank.rank == root:
            assert_same_bits(output, expected, f"gather of {case}")

    output = torch.empty(count, dtype=dtype)
    dist.scatter(output, inputs if rank.rank == root else None, src=root)
    assert_same_bits(output, own, f"scatter of {case}")

    # Rank i sends rank j what rank i + j calls its own.
    outputs = empties()
    dist.all_to_all(outputs, [inputs[(rank.rank + r) % n] for r in range(n)])
    for r, output in enumerate(outputs):
        assert_same_bits(output, inputs[(rank.rank + r) % n], f"all_to_all of {case}")

    output = torch.empty(n * count, dtype=dtype)
    dist.all_to_all_single(output, torch.cat([inputs[(rank.rank + r) % n] for r in range(n)]))
    expected = torch.cat([inputs[(rank.rank + r) % n] for r in range(n)])
    assert_same_bits(output, expected, f"all_to_all_single of {case}")


def every_dtype(rank: Rank) -> None:
    for dtype in MOVED:
        for count in COUNTS:
            check_all(rank, count, dtype)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_every_dtype(world_size: int) -> None:
    on_processes(every_dtype, world_size, backend="ring")


def large(rank: Rank) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.complex128, torch.bool):
        for nbytes in LARGE_NBYTES:
            check_all(rank, nbytes // dtype.itemsize, dtype)


@pytest.mark.parametrize("world_size", [2, 3])
def test_large(world_size: int) -> None:
    on_processes(large, world_size, backend="ring")


def streamed(rank: Rank) -> None:
    check_all(rank, STREAMED_NBYTES, torch.uint8)


def test_outputs_that_no_cache_holds() -> None:
    on_processes(streamed, 2, backend="ring")


def rows_for(sender: int, receiver: int, unit: int) -> int:
    """Any number of rows, none included."""
    return unit * ((3 * sender + receiver) % 4)


def uneven_all_to_all(rank: Rank, unit: int) -> None:
    n = rank.world_size

    def block(sender: int, receiver: int) -> torch.Tensor:
        rows = rows_for(sender, receiver, unit)
        return torch.arange(rows * 3).view(rows, 3) + 1000 * sender + 100 * receiver

    inputs = [block(rank.rank, r) for r in range(n)]
    expected = [block(r, rank.rank) for r in range(n)]
    output = torch.empty_like(torch.cat(expected))
    dist.all_to_all_single(
        output, torch.cat(inputs), [len(b) for b in expected], [len(b) for b in inputs]
    )
    assert_same_bits(output, torch.cat(expected))
    outputs = [torch.empty_like(b) for b in expected]
    dist.all_to_all(outputs, inputs)
    assert_same_bits(torch.cat(outputs), torch.cat(expected))


@pytest.mark.parametrize("unit", [1, 3000])
@pytest.mark.parametrize("world_size", [2, 4])
def test_uneven_all_to_all(world_size: int, unit: int) -> None:
    on_processes(uneven_all_to_all, world_size, unit, backend="ring")


def uneven_lists(rank: Rank, unit: int) -> None:
    """all_gather and reduce_scatter with another count on every rank."""
    counts = [unit * r for r in range(rank.world_size)]
    inputs = [values(r, count, torch.float32) for r, count in enumerate(counts)]
    outputs = [torch.empty(count) for count in counts]
    dist.all_gather(outputs, inputs[rank.rank])
    for output, expected in zip(outputs, inputs, strict=True):
        assert_same_bits(output, expected)
    output = torch.empty(counts[rank.rank])
    dist.reduce_scatter(output, inputs)
    assert_same_bits(output, inputs[rank.rank] * rank.world_size)


@pytest.mark.parametrize("unit", [1, 20_000])
def test_uneven_lists(unit: int) -> None:
    on_processes(uneven_lists, 3, unit, backend="ring")


def coalesced(rank: Rank, count: int) -> None:
    n = rank.world_size
    inputs = [[values(r + 10 * i, count + i, torch.float32) for i in range(3)] for r in range(n)]
    own = inputs[rank.rank]
    sums = [sum(inputs[r][i] for r in range(n)) for i in range(3)]

    tensors = [x.clone() for x in own]
    dist.all_reduce_coalesced(tensors)
    for tensor, expected in zip(tensors, sums, strict=True):
        assert_same_bits(tensor, expected, "all_reduce_coalesced")

    tensors = [x.clone() for x in own]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, expected in zip(tensors, sums, strict=True):
        assert_same_bits(tensor, expected, "coalesced all_reduce")

    outputs = [torch.empty(n * x.numel()) for x in own]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, x in zip(outputs, own, strict=True):
            dist.all_gather_into_tensor(output, x)
    manager.wait()
    for i, output in enumerate(outputs):
        expected = torch.cat([inputs[r][i] for r in range(n)])
        assert_same_bits(output, expected, "coalesced all_gather_into_tensor")

    outputs = [torch.empty(x.numel()) for x in own]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, x in zip(outputs, own, strict=True):
            dist.reduce_scatter_tensor(output, x.repeat(n))
    manager.wait()
    for output, expected in zip(outputs, sums, strict=True):
        assert_same_bits(output, expected, "coalesced reduce_scatter_tensor")

    tensor = own[0].clone()
    gathered = torch.empty(n * own[1].numel())
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(tensor, 1)
        dist.all_to_all_single(gathered, own[1].repeat(n))
    manager.wait()
    assert_same_bits(tensor, inputs[1][0], "coalesced broadcast")
    assert_same_bits(gathered, torch.cat([inputs[r][1] for r in range(n)]), "coalesced all_to_all")


@pytest.mark.parametrize("count", [0, 5, 30_000])
def test_coalesced(count: int) -> None:
    on_processes(coalesced, 3, count, backend="ring")


def objects(rank: Rank) -> None:
    own = {"rank": rank.rank, "long": list(range(rank.rank * 5000))}
    every = [{"rank": r, "long": list(range(r * 5000))} for r in range(rank.world_size)]
    gathered = [None] * rank.world_size
    dist.all_gather_object(gathered, own)
    assert gathered == every

    collected = [None] * rank.world_size if rank.rank == 1 else None
    dist.gather_object(own, collected, dst=1)
    assert collected == (every if rank.rank == 1 else None)

    shared = [own, "more"] if rank.rank == 2 else [None, None]
    dist.broadcast_object_list(shared, src=2)
    assert shared == [every[2], "more"]

    mine = [None]
    dist.scatter_object_list(mine, every if rank.rank == 0 else None, src=0)
    assert mine == [own]

    if rank.rank == 0:
        dist.send_object_list([own, "sent"], dst=2)
    elif rank.rank == 2:
        received = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [every[0], "sent"]


def test_objects() -> None:
    on_processes(objects, 3, backend="ring")
