"""torch.distributed._reconfigure: groups that shrink, grow, and get members that were not there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import values
from ranks import DIED, Rank, on_processes, outcomes
from torch.distributed import PrefixStore

pytestmark = values.torch_2_14

LIMIT = timedelta(seconds=30)


def join(rank: Rank) -> None:
    dist.init_process_group(
        "ring",
        store=PrefixStore("group", rank.store),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=LIMIT,
        enable_reconfigure=True,
    )
    rank.store.set(f"handle {rank.rank}", dist._get_reconfigure_handle())


def members(rank: Rank, ranks: Sequence[int]) -> list[str]:
    return [rank.store.get(f"handle {r}").decode() for r in ranks]


def total() -> float:
    tensor = torch.full((70_000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    return tensor[0].item()


def a_newcomer_replaces_a_dead_rank(rank: Rank) -> float:
    join(rank)
    if rank.rank < 3:
        dist._reconfigure(1, members(rank, [0, 1, 2])).wait()
        assert total() == 6 and dist.get_world_size() == 3
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank.rank != 3:
        with pytest.raises(dist.DistBackendError, match="rank 1 will not answer"):
            total()
    dist._reconfigure(2, members(rank, [3, 0, 2])).wait()
    assert dist.get_rank() == [3, 0, 2].index(rank.rank)
    return total()


def test_a_newcomer_replaces_a_dead_rank() -> None:
    results = outcomes(a_newcomer_replaces_a_dead_rank, 4)
    assert results.pop(1).ended == DIED
    assert [outcome.result for outcome in results] == [6.0] * 3, results


def one_dies_before_it_joins(rank: Rank) -> None:
    join(rank)
    handles = members(rank, [0, 1])
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=r"rank 1 will not come: its process \d+ has"):
        dist._reconfigure(1, handles)
    assert time.monotonic() - started < 20
    with pytest.raises(RuntimeError, match="has no members yet"):
        total()
    dist._reconfigure(2, handles[:1]).wait()
    assert total() == 1


def test_a_death_meanwhile_is_no_wait() -> None:
    survivor, _ = outcomes(one_dies_before_it_joins, 2)
    assert survivor.ended == "returned", survivor.traceback


def misuse(rank: Rank) -> None:
    join(rank)
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    assert dist._supports_reconfigure()
    own = dist._get_reconfigure_handle()
    tensor = torch.ones(3)
    for call in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.isend(tensor, 1 - rank.rank),
        lambda: dist.barrier(),
        lambda: backend.monitored_barrier(LIMIT),
    ):
        with pytest.raises(RuntimeError, match="has no members yet"):
            call()
    for handles, words in [
        (["nobody"], '"nobody" is not a handle'),
        (members(rank, [1 - rank.rank]), "this rank's handle is not among the 1 given"),
        ([own, own], "given twice"),
    ]:
        with pytest.raises(ValueError, match=words):
            dist._reconfigure(7, handles)
    dist._reconfigure(7, set(members(rank, [0, 1]))).wait()
    assert total() == 3
    with pytest.raises(RuntimeError, match="uuid 7 was already used"):
        dist._reconfigure(7, [own])
    usual = dist.new_group([0, 1])
    assert not dist._supports_reconfigure(usual)
    with pytest.raises(ValueError, match="without enable_reconfigure"):
        dist._reconfigure(8, [own], group=usual)


def test_misuse() -> None:
    on_processes(misuse, 2)
