"""Groups with check_finite: NaN and infinity are errors on all ranks, before they spread."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch.distributed import PrefixStore

import ringcomm

VICTIM = 1
MAKES_AN_ERROR = "check_finite of the group makes that an error"
FLOATS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
]


def init(rank: Rank, options: ringcomm.Options | None = None) -> None:
    store = PrefixStore("default", rank.store)
    dist.init_process_group(
        "ring", store=store, rank=rank.rank, world_size=rank.world_size, pg_options=options
    )


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, dist.DistBackendError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def refused(rank: Rank, call: Callable[[], object], *words: str) -> None:
    """All ranks raise, and say what the victim had."""
    text = outcome(call)
    kind = "ValueError: ring: " if rank.rank == VICTIM else "DistBackendError: ring: rank "
    assert text.startswith(kind), text
    for word in (*words, MAKES_AN_ERROR):
        assert word in text
    if rank.rank != VICTIM:
        assert f"rank {VICTIM}'s arguments were refused" in text


def bad(
    rank: Rank, value: float = float("nan"), dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Of shape [2, 5]; the victim's has the value in row 1, column 2."""
    x = torch.ones(2, 5)
    if rank.rank == VICTIM:
        x[1, 2] = value
    return x.to(dtype)


def all_reduces(rank: Rank) -> None:
    init(rank, ringcomm.Options(check_finite=True))
    x = bad(rank)
    where = ("the tensor of shape [2, 5] has nan at index [1, 2]",)
    refused(rank, lambda: dist.all_reduce(x), "all_reduce #1: ", *where)
    refused(rank, lambda: ringcomm.all_reduce(x), "all_reduce #2: ", *where)
    refused(rank, lambda: dist.all_reduce(x, async_op=True).wait(), "all_reduce #3: ", *where)
    refused(rank, lambda: dist.all_reduce(x.t()), "shape [5, 2] has nan at index [2, 1]")
    refused(rank, lambda: dist.all_reduce(x[:, 2:3]), "shape [2, 1] has nan at index [1, 0]")
    for value in (float("inf"), float("-inf")):
        refused(rank, lambda v=value: dist.all_reduce(bad(rank, v)), f"has {value} at index [1, 2]")
    assert bool((x[0] == 1).all())  # nothing was changed
    good = torch.full((10_000,), torch.finfo(torch.float32).max)
    dist.all_reduce(good, op=dist.ReduceOp.MAX)
    assert bool((good == torch.finfo(torch.float32).max).all())


def test_all_reduces() -> None:
    on_processes(all_reduces, 3)


def every_dtype(rank: Rank) -> None:
    init(rank, ringcomm.Options(check_finite=True))
    for dtype in FLOATS:
        x = bad(rank, dtype=dtype).flatten()
        gathered = torch.empty(20, dtype=dtype)
        refused(
            rank, lambda x=x, out=gathered: dist.all_gather_into_tensor(out, x), "nan at index [7"
        )
        ringcomm.all_gather_into_tensor(gathered, torch.ones(10).to(dtype))
        assert bool((gathered.to(torch.float32) == 1).all())
    for dtype in (torch.int32, torch.uint8, torch.bool, torch.float4_e2m1fn_x2):  # any bits do
        x = torch.full((4,), -1, dtype=torch.int32).view(torch.uint8).view(dtype)
        dist.broadcast(x, 0)


@pytest.mark.filterwarnings("ignore:.*complex.*")
def test_every_dtype() -> None:
    on_processes(every_dtype, 2)


def every_call(rank: Rank) -> None:
    init(rank, ringcomm.Options(check_finite=True))
    x, good = bad(rank), torch.ones(2, 5)
    out = torch.empty(4, 5)
    for call in (
        lambda: dist.all_reduce_coalesced([good, x]),
        lambda: dist.reduce(x, 0),
        lambda: dist.broadcast(x, VICTIM),
        lambda: dist.all_gather_into_tensor(out, x),
        lambda: dist.all_gather([torch.empty(2, 5), torch.empty(2, 5)], x),
        lambda: dist.reduce_scatter_tensor(torch.empty(1, 5), x),
        lambda: dist.reduce_scatter(torch.empty(2, 5), [good, x]),
        lambda: dist.all_to_all_single(torch.empty(2, 5), x),
        lambda: dist.all_to_all([torch.empty(2, 5), torch.empty(2, 5)], [good, x]),
        lambda: dist.gather(x, [torch.empty(2, 5) for _ in range(2)] if rank.rank == 0 else None),
        lambda: dist.scatter(good, [good, x] if rank.rank == VICTIM else None, src=VICTIM),
        lambda: ringcomm.all_gather_into_tensor(out, x),
        lambda: ringcomm.reduce_scatter_tensor(torch.empty(1, 5), x),
        lambda: dist.all_reduce(x.to_sparse(2)),
        lambda: (dist.send if rank.rank == VICTIM else dist.recv)(x, 1 - rank.rank),
        lambda: (ringcomm.send if rank.rank == VICTIM else ringcomm.recv)(x, 1 - rank.rank),
        lambda: (dist.isend if rank.rank == VICTIM else dist.irecv)(x, 1 - rank.rank).wait(),
    ):
        refused(rank, call, "nan")
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.tolist() == [2.0] * 3


def test_every_call() -> None:
    on_processes(every_call, 2)


def what_is_not_sent(rank: Rank) -> None:
    """The contents of outputs do not count."""
    init(rank, ringcomm.Options(check_finite=True))
    nan = torch.full((4,), float("nan"))
    dist.broadcast(nan if rank.rank == VICTIM else torch.ones(4), 0)
    dist.all_gather_into_tensor(torch.full((8,), float("nan")), torch.ones(4))
    x = torch.ones(4) if rank.rank == VICTIM else torch.full((4,), float("nan"))
    (dist.send if rank.rank == VICTIM else dist.recv)(x, 1 - rank.rank)
    assert x.tolist() == [1.0] * 4
    dist.all_reduce(torch.empty(0))


def test_what_is_not_sent() -> None:
    on_processes(what_is_not_sent, 2)


def one_rank_alone(rank: Rank) -> None:
    """By the environment, on the victim alone, in one group of two."""
    os.environ["RINGCOMM_CHECK_FINITE"] = "1" if rank.rank == VICTIM else "0"
    init(rank)
    refused(rank, lambda: dist.all_reduce(bad(rank)), "nan")
    unchecked = ringcomm.new_group(check_finite=False)
    x = bad(rank)
    dist.all_reduce(x, group=unchecked)
    assert x[1, 2].isnan() and x[0, 0] == 2


def test_one_rank_alone() -> None:
    on_processes(one_rank_alone, 2)


def test_what_is_no_bool() -> None:
    with pytest.raises(
        ValueError, match=r"check_finite of ringcomm\.Options must be True or False"
    ):
        ringcomm.backend.check_finite(ringcomm.Options(check_finite="yes"))  # type: ignore[arg-type]
