"""The loop in C++ by which benchmarks time a backend."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from compiled import tools
from ranks import Rank, on_threads
from torch._C._distributed_c10d import Backend
from torch.distributed import PrefixStore, ReduceOp

from ringcomm import _C

TIMEOUT = timedelta(seconds=20)
# Here, because a rank that skips would fail.
repeat_all_reduce = tools().repeat_all_reduce


def backend(rank: Rank, name: str) -> Backend:
    store = PrefixStore(name, rank.store)
    if name == "gloo":
        return dist.ProcessGroupGloo(store, rank.rank, rank.world_size, TIMEOUT)
    members = list(range(rank.world_size))
    return _C.create_backend(
        store, rank.rank, rank.world_size, TIMEOUT, [], [], 1, 1 << 20, 32, name, members
    )


@pytest.mark.parametrize("name", ["ring", "gloo"])
def test_sums_as_often_as_asked(name: str) -> None:
    """The ranks are threads: each waits for the others, so none may keep the interpreter's lock."""

    def body(rank: Rank) -> tuple[float, float]:
        group = backend(rank, name)
        sums, most = torch.ones(5), torch.tensor([float(rank.rank)])
        repeat_all_reduce(group, sums, ReduceOp.SUM, 4)
        repeat_all_reduce(group, most, ReduceOp.MAX, 1)
        repeat_all_reduce(group, sums, ReduceOp.SUM, 0)
        group.shutdown()
        return sums[0].item(), most.item()

    assert on_threads(body, 3) == [(3.0**4, 2.0)] * 3


def test_a_rank_that_does_not_come_is_an_error() -> None:
    def body(rank: Rank) -> str:
        group = backend(rank, "ring")
        if rank.rank == 1:
            return ""
        with pytest.raises(dist.DistBackendError) as raised:
            repeat_all_reduce(group, torch.ones(5), ReduceOp.SUM, 2)
        return str(raised.value)

    assert "rank 1 will not answer" in on_threads(body, 2)[0]
