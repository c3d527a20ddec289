"""Reductions through torch.distributed: every dtype, op and count, bit for bit."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch.distributed import ReduceOp
from values import (
    COMPLEX,
    REDUCED,
    assert_same_bits,
    ops_for,
    reduce_op,
    reduced,
    values,
)

EAGER_NBYTES = 32 * 1024
WORLD_SIZES = [1, 2, 3, 4, 8]


def small_counts(world_size: int) -> list[int]:
    return [0, 1, world_size - 1, world_size + 1, 131]


def large_counts(dtype: torch.dtype, world_size: int) -> list[int]:
    """Around where inputs stop to travel with their announcement, and several MiB."""
    eager = EAGER_NBYTES // dtype.itemsize
    return [eager // world_size, eager - 1, eager, eager + 1, (2 << 20) // dtype.itemsize + 7]


@functools.lru_cache(maxsize=1)  # of several checks with the same: most of their time goes into it
def inputs_and_result(
    world_size: int, count: int, dtype: torch.dtype, op: str
) -> tuple[list[torch.Tensor], torch.Tensor]:
    inputs = [values(r, count, dtype, op) for r in range(world_size)]
    return inputs, reduced(inputs, op)


def check_all_reduce(rank: Rank, count: int, dtype: torch.dtype, op: str) -> None:
    inputs, result = inputs_and_result(rank.world_size, count, dtype, op)
    tensor = inputs[rank.rank].clone()
    dist.all_reduce(tensor, reduce_op(op))
    assert_same_bits(tensor, result, f"all_reduce of {count} {dtype}, {op}")


def check_reduce(rank: Rank, count: int, dtype: torch.dtype, op: str) -> None:
    inputs, result = inputs_and_result(rank.world_size, count, dtype, op)
    root = count % rank.world_size
    tensor = inputs[rank.rank].clone()
    dist.reduce(tensor, root, reduce_op(op))
    if rank.rank == root:
        assert_same_bits(tensor, result, f"reduce of {count} {dtype}, {op}")
    else:
        assert_same_bits(tensor, inputs[rank.rank], "reduce leaves the others' tensors alone")


def check_reduce_scatter(rank: Rank, count: int, dtype: torch.dtype, op: str) -> None:
    inputs, result = inputs_and_result(rank.world_size, count * rank.world_size, dtype, op)
    own = inputs[rank.rank]
    expected = result.view(rank.world_size, count)[rank.rank]
    output = torch.empty(count, dtype=dtype)
    dist.reduce_scatter_tensor(output, own.clone(), reduce_op(op))
    assert_same_bits(output, expected, f"reduce_scatter_tensor to {count} {dtype}, {op}")

    in_place = own.clone()
    part = in_place.view(rank.world_size, count)[rank.rank]
    dist.reduce_scatter_tensor(part, in_place, reduce_op(op))
    assert_same_bits(part, expected, f"reduce_scatter_tensor in place to {count} {dtype}, {op}")

    parts = [part.clone() for part in own.view(rank.world_size, count)]
    dist.reduce_scatter(output.zero_(), parts, reduce_op(op))
    assert_same_bits(output, expected, f"reduce_scatter to {count} {dtype}, {op}")


def small_cases(rank: Rank, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        for op in ops_for(dtype):
            for count in small_counts(rank.world_size):
                check_all_reduce(rank, count, dtype, op)
                check_reduce(rank, count, dtype, op)
                check_reduce_scatter(rank, count, dtype, op)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_small(world_size: int) -> None:
    on_processes(small_cases, world_size, REDUCED, backend="ring")


def large_cases(rank: Rank, dtype: torch.dtype) -> None:
    for count in large_counts(dtype, rank.world_size):
        check_all_reduce(rank, count, dtype, "SUM")
        check_reduce(rank, count, dtype, "SUM")
        check_reduce_scatter(rank, count // rank.world_size, dtype, "SUM")
    for op in ops_for(dtype):
        check_all_reduce(rank, 2 * EAGER_NBYTES // dtype.itemsize + 3, dtype, op)
        check_reduce_scatter(rank, EAGER_NBYTES // dtype.itemsize + 3, dtype, op)


@pytest.mark.parametrize(
    ("dtype", "world_size"),
    [
        (torch.float32, 3),
        (torch.bfloat16, 2),
        (torch.float8_e5m2, 3),
        (torch.int32, 4),
        (torch.bool, 2),
    ],
    ids=str,
)
def test_large(dtype: torch.dtype, world_size: int) -> None:
    on_processes(large_cases, world_size, dtype, backend="ring")


@pytest.mark.slow
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_large_of_every_kind(dtype: torch.dtype, world_size: int) -> None:
    on_processes(large_cases, world_size, dtype, backend="ring", timeout=200)


def complex_cases(rank: Rank) -> None:
    for dtype in COMPLEX:
        for op in ("SUM", "AVG"):
            for count in (1, 131, 9000):
                check_all_reduce(rank, count, dtype, op)
                check_reduce(rank, count, dtype, op)
                check_reduce_scatter(rank, count, dtype, op)


@pytest.mark.parametrize("world_size", [2, 4])
def test_complex(world_size: int) -> None:
    on_processes(complex_cases, world_size, backend="ring")


def special_values(rank: Rank) -> None:
    nan, inf = float("nan"), float("inf")
    own = torch.tensor([nan, 1.0, inf, inf, 0.0]) if rank.rank == 1 else torch.ones(5)
    own[3] = inf if rank.rank == 1 else -inf
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for op, expected in (
            (ReduceOp.SUM, [nan, 3.0, inf, nan, 2.0]),
            (ReduceOp.MIN, [nan, 1.0, 1.0, -inf, 0.0]),
            (ReduceOp.MAX, [nan, 1.0, inf, inf, 1.0]),
        ):
            tensor = own.to(dtype, copy=True)
            dist.all_reduce(tensor, op)
            wanted = torch.tensor(expected, dtype=dtype)
            torch.testing.assert_close(tensor, wanted, rtol=0, atol=0, equal_nan=True)


def test_nan_and_infinity() -> None:
    on_processes(special_values, 3, backend="ring")


def normal(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def all_reduce_with(
    rank: Rank, algorithm: str, dtype: torch.dtype, counts: list[int]
) -> list[torch.Tensor]:
    os.environ["RINGCOMM_ALGORITHM"] = algorithm
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    tensors = [normal(rank.rank, count, dtype) for count in counts]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


def sums_and_magnitudes(
    world_size: int, counts: list[int], dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for count in counts:
        inputs = torch.stack([normal(r, count, dtype).double() for r in range(world_size)])
        yield inputs.sum(0), inputs.abs().sum(0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_direct_sums_are_rounded_once(dtype: torch.dtype) -> None:
    counts = [1000, 70_001]
    results = on_processes(all_reduce_with, 4, "direct", dtype, counts)
    expected = [total.to(dtype) for total, _ in sums_and_magnitudes(4, counts, dtype)]
    for tensors in results:
        for tensor, reference in zip(tensors, expected, strict=True):
            # float32 sums of four such values are within 2**-22 of float64's: they may fall to the
            # other side of a midpoint now and then, and never further than that.
            differ = (tensor != reference).double().mean()
            assert differ < 1e-3
            torch.testing.assert_close(tensor, reference, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_error_bound(algorithm: str, dtype: torch.dtype) -> None:
    """A ring of n ranks rounds n - 1 times, each by at most half a unit in the last place."""
    world_size = 4
    counts = [1000, 70_001]
    results = on_processes(all_reduce_with, world_size, algorithm, dtype, counts)
    unit = torch.finfo(dtype).eps / 2
    for number, (total, magnitude) in enumerate(sums_and_magnitudes(world_size, counts, dtype)):
        # The reference, in float64, has rounded as often.
        bound = (world_size - 1) * (unit + torch.finfo(torch.float64).eps) * magnitude
        for tensors in results:
            assert ((tensors[number].double() - total).abs() <= bound).all()
            assert_same_bits(tensors[number], results[0][number], "all ranks hold the same")


def repeated(rank: Rank) -> None:
    for count in (1000, 100_000):
        first = None
        for _ in range(5):
            tensor = normal(rank.rank, count, torch.float32)
            dist.all_reduce(tensor)
            first = tensor if first is None else first
            assert_same_bits(tensor, first, "the same call gives the same bits")


def test_reproducible() -> None:
    on_processes(repeated, 4, backend="ring")
