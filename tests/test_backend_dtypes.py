"""What ranks compare are the user's dtypes and counts; averages of integers are exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from values import COMPLEX, FLOATS, INTEGERS, assert_same_bits

import ringcomm

# Two tensors of equal bytes that the core moves, or adds, alike; and how the first is described.
ALIKE = [
    ((7, torch.complex64), (14, torch.float32)),
    ((7, torch.uint16), (14, torch.uint8)),
    ((7, torch.complex128), (14, torch.complex64)),
    ((7, torch.uint32), (7, torch.float8_e4m3fnuz)),
]
Case = tuple[tuple[int, torch.dtype], tuple[int, torch.dtype]]


def described(count: int, dtype: torch.dtype) -> str:
    return f"count={count}, dtype={str(dtype).removeprefix('torch.')}"


# By the group's methods: torch.distributed's functions make complex numbers pairs of real ones
# before the backend sees them, most of them.


def broadcast(tensor: torch.Tensor) -> None:
    dist.group.WORLD.broadcast(tensor, 0).wait()


def all_gather_into(tensor: torch.Tensor) -> None:
    n = dist.get_world_size()
    dist.group.WORLD._allgather_base(tensor.new_empty(n * tensor.numel()), tensor).wait()


def all_reduce(tensor: torch.Tensor) -> None:
    dist.group.WORLD.allreduce([tensor]).wait()


def send_and_receive(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.group.WORLD.send([tensor], 1, 0).wait()
    else:
        dist.group.WORLD.recv([tensor], 0, 0).wait()


def check_mismatch(rank: Rank, case: Case) -> None:
    count, dtype = case[rank.rank]
    tensor = torch.zeros(count, dtype=dtype)
    calls: list[tuple[Callable[[torch.Tensor], object], int]] = [
        (broadcast, 1),
        (all_gather_into, 2),
    ]
    if all(each in (*FLOATS, *COMPLEX) for _, each in case):
        calls.append((all_reduce, 1))
    for call, times in calls:
        with pytest.raises(dist.DistBackendError, match="the ranks disagree") as raised:
            call(tensor)
        for theirs, their_dtype in case:
            assert described(theirs * times, their_dtype) in str(raised.value)
    if rank.rank == 1:
        with pytest.raises(dist.DistBackendError, match="The message was dropped") as raised:
            send_and_receive(tensor)
        for theirs, their_dtype in case:
            assert described(theirs, their_dtype) in str(raised.value)
    else:
        send_and_receive(tensor)
    dist.barrier()


@pytest.mark.parametrize("case", ALIKE, ids=str)
def test_equal_bytes_of_other_dtypes_do_not_match(case: Case) -> None:
    on_processes(check_mismatch, 2, case, backend="ring")


COUNTS = [50, 30_000]
ALGORITHMS = ["auto", "ring", "recursive_doubling"]


def full_range(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    limits = torch.iinfo(dtype)
    numbers = torch.randint(
        -(2**63), 2**63 - 1, (count,), generator=generator, dtype=torch.int64
    ) >> (64 - limits.bits)
    numbers[:2] = torch.tensor([limits.max, limits.min])
    return numbers.to(dtype)


def mean(inputs: list[torch.Tensor]) -> torch.Tensor:
    """By Python's integers, which never wrap around; truncated toward zero."""
    n = len(inputs)
    totals = (sum(values) for values in zip(*(x.tolist() for x in inputs), strict=True))
    return torch.tensor(
        [abs(total) // n * (1 if total >= 0 else -1) for total in totals], dtype=inputs[0].dtype
    )


def check_averages(rank: Rank, algorithm: str) -> None:
    n = rank.world_size
    options = None if algorithm == "auto" else ringcomm.Options(algorithm=algorithm)
    group = dist.new_group(backend="ring", pg_options=options)
    for dtype in INTEGERS:
        for count in COUNTS:
            case = f"{algorithm} {dtype} {count}"
            inputs = [full_range(r, n * count, dtype) for r in range(n)]
            expected = mean(inputs)
            own = inputs[rank.rank].clone()
            dist.all_reduce(own, dist.ReduceOp.AVG, group=group)
            assert_same_bits(own, expected, f"all_reduce {case}")
            own = inputs[rank.rank].clone()
            dist.reduce(own, 1, dist.ReduceOp.AVG, group=group)
            if rank.rank == 1:
                assert_same_bits(own, expected, f"reduce {case}")
            part = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(part, inputs[rank.rank], dist.ReduceOp.AVG, group=group)
            own_part = expected[rank.rank * count : (rank.rank + 1) * count]
            assert_same_bits(part, own_part, f"reduce_scatter {case}")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_averages_of_integers_are_exact(algorithm: str) -> None:
    on_processes(check_averages, 3, algorithm, backend="ring")
