"""Making groups of ranks that are missing, dead or started again; and how errors name ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes, outcomes

import ringcomm  # noqa: F401  (registers "ring")

HOUR = timedelta(hours=1)


def init(rank: Rank, timeout: timedelta = HOUR) -> None:
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size, timeout=timeout
    )


def waits_for_rank_2(rank: Rank) -> str:
    rank.meet()
    if rank.rank == 2:
        return ""
    with pytest.raises(dist.DistBackendError) as caught:
        init(rank, timedelta(seconds=1))
    return str(caught.value)


def test_a_rank_that_does_not_come_is_named_alike_by_all() -> None:
    first, second, _, fourth = on_processes(waits_for_rank_2, 4)
    assert "rank 2 did not come" in first
    assert "Timed out" in first
    assert first == second == fourth


def killed_while_it_waits(rank: Rank) -> str:
    if rank.rank == 1:
        return ""  # never comes
    rank.store.set(f"pid {rank.rank}", str(os.getpid()))
    if rank.rank == 2:
        init(rank)
    rank.store.wait(["pid 2"])
    time.sleep(1.5)  # it has come by now
    if rank.rank == 0:
        os.kill(int(rank.store.get("pid 2")), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        init(rank)
    assert time.monotonic() - started < 50
    return str(caught.value)


def test_a_rank_that_dies_while_it_waits_is_named() -> None:
    results = outcomes(killed_while_it_waits, 4, timeout=90)
    for rank in (0, 3):
        assert results[rank].ended == "returned", results[rank].traceback
        assert "rank 2 will not come: its process " in results[rank].result


def rank_0_is_killed_while_it_waits(rank: Rank) -> str:
    if rank.rank == 3:
        return ""  # never comes
    rank.store.set(f"pid {rank.rank}", str(os.getpid()))
    if rank.rank == 1:
        rank.store.wait(["pid 0", "pid 2"])
        pid = int(rank.store.get("pid 0"))
        threading.Timer(1.5, os.kill, (pid, signal.SIGKILL)).start()  # all have met it by now
    with pytest.raises(dist.DistBackendError) as caught:
        init(rank)
    return str(caught.value)


def test_rank_0_is_named_when_it_dies_while_it_waits() -> None:
    results = outcomes(rank_0_is_killed_while_it_waits, 4, timeout=90)
    for rank in (1, 2):
        assert results[rank].ended == "returned", results[rank].traceback
        assert "rank 0 will not come: its process " in results[rank].result


def new_group_with_the_dead(rank: Rank) -> str:
    init(rank)
    dist.barrier()
    if rank.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank.rank == 1:
        rank.store.wait(["seen by 0", "seen by 2"])
        return ""  # it has nothing to do with it
    with pytest.raises(dist.DistBackendError) as caught:
        dist.new_group([0, 2, 3], timeout=HOUR, use_local_synchronization=True)
    text = str(caught.value)
    assert "rank 3 (rank 2 of " in text
    assert "will not come: its process " in text
    rank.store.set(f"seen by {rank.rank}", "")
    return text


def test_a_group_with_a_dead_member_is_refused_at_once() -> None:
    results = outcomes(new_group_with_the_dead, 4, timeout=60)
    for rank in (0, 2):
        assert results[rank].ended == "returned", results[rank].traceback


def attempt(rank: Rank, path: str, dies: int, comes: bool) -> float:
    """Of ranks as a launcher starts them again and again, with one store."""
    rank.store = dist.FileStore(path)
    if rank.rank == dies:
        if comes:
            with pytest.raises(dist.DistBackendError):
                init(rank, timedelta(milliseconds=300))
        os.kill(os.getpid(), signal.SIGKILL)
    if dies >= 0:
        with pytest.raises(dist.DistBackendError):
            init(rank, timedelta(milliseconds=600))
        return 0.0
    started = time.monotonic()
    init(rank)
    waited = time.monotonic() - started
    tensor = torch.ones(50_000)
    dist.all_reduce(tensor)
    assert tensor[0] == rank.world_size
    return waited


def test_attempts_that_failed_do_not_hold_up_the_next(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    for dies, comes in [(0, True), (1, False), (2, True), (1, True), (0, False)]:
        outcomes(attempt, 3, store, dies, comes, timeout=60)
    for waited in on_processes(attempt, 3, store, -1, False):
        assert waited < 30  # the time-out is an hour


def different_sizes(rank: Rank) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        rank.world_size += rank.rank  # 2 and 3
        init(rank)
    return str(caught.value)


def test_ranks_that_disagree_on_the_group_raise() -> None:
    for text in on_processes(different_sizes, 2):
        assert "the ranks do not agree on who is in the group: rank 0 makes one of 2 ranks" in text
        assert "came as rank 1 of 3" in text


def names(rank: Rank) -> dict[str, str]:
    init(rank)
    group = dist.new_group([1, 3], group_desc="tp")
    texts = {}
    if rank.rank == 1:
        x = torch.ones(6)
        dist.all_reduce(x, group=group)
        with pytest.raises(dist.DistBackendError) as caught:
            dist.broadcast(x, src=1, group=group)
        texts["mismatch"] = str(caught.value)
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_to_all_single(x, x.clone(), group=group)
        texts["died"] = str(caught.value)
        rank.store.set("done", "")
    elif rank.rank == 3:
        x = torch.ones(6)
        dist.all_reduce(x, group=group)
        with pytest.raises(dist.DistBackendError):
            dist.broadcast(x, src=3, group=group)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        rank.store.wait(["done"])
    return texts


def test_errors_of_a_group_name_global_ranks() -> None:
    results = outcomes(names, 4, timeout=60)
    texts = results[1].result
    assert (
        "rank 1 (rank 0 of group tp) called broadcast(count=6, dtype=float32, root=1)"
        in (texts["mismatch"])
    )
    assert (
        "rank 3 (rank 1 of group tp) called broadcast(count=6, dtype=float32, root=3)"
        in (texts["mismatch"])
    )
    assert "rank 1 (rank 0 of group tp) in all_to_all(count=6, dtype=float32) #3" in texts["died"]
    assert "rank 3 (rank 1 of group tp) will not answer, its process " in texts["died"]
    assert f"(on host {os.uname().nodename})" in texts["died"]


def first_cause(rank: Rank) -> str:
    init(rank)
    dist.barrier()
    if rank.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.4 * rank.rank)  # rank 0 sees it and leaves before the others call
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    return str(caught.value)


def test_who_leaves_after_a_failure_is_not_its_cause() -> None:
    results = outcomes(first_cause, 4, timeout=60)
    for rank in range(3):
        assert "rank 3 will not answer, its process " in results[rank].result
    assert "because the group failed on rank 0: " in results[2].result
