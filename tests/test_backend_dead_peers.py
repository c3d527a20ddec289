"""Waits for dead ranks that name no single peer: a receive from any rank, a monitored barrier."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from ranks import Outcome, Rank, outcomes
from values import torch_2_14

SOON = 20.0  # seconds; the groups' timeout is 30 minutes


def receive_from_any(rank: Rank) -> str:
    dist.barrier()
    received = torch.zeros(3)
    if rank.rank == 1:
        dist.send(torch.ones(3), 0)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if rank.rank == 2:
        rank.store.wait(["raised"])
        return ""
    assert dist.recv(received) == 1  # what was sent before still counts
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError) as raised:
        dist.recv(received)
    assert time.monotonic() - started < SOON
    rank.store.set("raised", "1")
    return str(raised.value)


def check_killed(found: list[Outcome], rank: int) -> None:
    assert found[rank].ended.startswith("died"), found[rank]


def test_receiving_from_any_rank_raises_when_one_has_died() -> None:
    found = outcomes(receive_from_any, 3, backend="ring")
    check_killed(found, 1)
    assert found[0].ended == "returned", found[0]
    for words in ["recv(count=3, dtype=float32, tag=0) from any rank", "rank 1", "has ended"]:
        assert words in found[0].result


def executes_another_program(rank: Rank) -> str:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    rank.meet()  # what a rank on another host has not yet received would go with the program
    if rank.rank == 1:
        os.execv("/bin/sleep", ["sleep", "5"])  # the test waits for its end
    with pytest.raises(dist.DistBackendError) as raised:
        dist.all_reduce(tensor)
    return str(raised.value)


@pytest.mark.parametrize("ranks_per_host", [3, 2, 1])
def test_a_rank_that_executes_another_program_is_gone(
    ranks_per_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is the same, and started at the same time."""
    monkeypatch.setenv("RINGCOMM_TEST_RANKS_PER_HOST", str(ranks_per_host))
    found = outcomes(executes_another_program, 3, backend="ring")
    for rank in (0, 2):
        assert found[rank].ended == "returned", found[rank]
        assert "rank 1" in found[rank].result
    if ranks_per_host == 3:
        assert "has ended, or executes another program" in found[0].result


def meet(rank: Rank) -> str:
    dist.barrier()
    if rank.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        dist.monitored_barrier(wait_all_ranks=rank.rank == 0)
    assert time.monotonic() - started < SOON
    return str(raised.value)


@torch_2_14
def test_a_monitored_barrier_names_dead_ranks_at_once() -> None:
    found = outcomes(meet, 3, backend="ring")
    check_killed(found, 2)
    assert "[Rank 0]: Rank 2 failed to pass monitoredBarrier in" in found[0].result
    assert "rank 2 will not come, its process" in found[0].result
    assert "[Rank 1]: Rank 1 successfully reached monitoredBarrier" in found[1].result
