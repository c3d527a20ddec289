"""Ranks that come late, stop, die or leave: the ranks that wait raise soon, and name them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import values
from ranks import Outcome, Rank, on_processes, on_threads, outcomes
from torch.distributed import PrefixStore

SHORT = timedelta(seconds=1)


def init(rank: Rank, name: str = "default", **options: object) -> None:
    dist.init_process_group(
        "ring",
        store=PrefixStore(name, rank.store),
        rank=rank.rank,
        world_size=rank.world_size,
        **options,
    )


def text_of(outcome: Outcome) -> str:
    assert outcome.ended == "raised", outcome
    return str(outcome.error)


def late(rank: Rank, call: Callable[[Rank], None]) -> str:
    rank.meet()
    init(rank, timeout=SHORT)
    dist.barrier()
    if rank.rank == 1:
        rank.store.wait(["raised"])
        return ""
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError) as raised:
        call(rank)
    assert 0.9 < time.monotonic() - started < 10
    rank.store.set("raised", "1")
    return str(raised.value)


def reduce_small(_: Rank) -> None:
    dist.all_reduce(torch.ones(5, dtype=torch.bfloat16), dist.ReduceOp.MAX)


def reduce_large(_: Rank) -> None:
    dist.all_reduce(torch.ones(100_000), async_op=True).wait()


def exchange(_: Rank) -> None:
    dist.all_to_all_single(torch.empty(3), torch.ones(5), [1, 2], [1, 4])


def receive(_: Rank) -> None:
    dist.recv(torch.ones(7), 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (reduce_small, ["all_reduce(count=5, dtype=bfloat16, op=max) #2"]),
        (reduce_large, ["all_reduce(count=100000, dtype=float32, op=sum) #2"]),
        (exchange, ["all_to_all(count=5, dtype=float32) #2"]),
        (receive, ["recv", "count=7", "dtype=float32"]),
    ],
)
def test_time_out_names_the_ranks_that_are_awaited(
    call: Callable[[Rank], None], words: list[str]
) -> None:
    message, _ = on_processes(late, 2, call)
    for word in ["rank 0", " Timed out after 1", "waiting for rank 1", *words]:
        assert word in message, message


def set_timeout(rank: Rank) -> None:
    dist.distributed_c10d._set_pg_timeout(SHORT)
    dist.barrier()
    if rank.rank == 0:
        started = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"its timeout is 1 s"):
            dist.barrier()
        assert time.monotonic() - started < 10
        rank.store.set("raised", "1")
    else:
        rank.store.wait(["raised"])


@values.torch_2_14
def test_timeout_can_be_changed() -> None:
    on_processes(set_timeout, 2, backend="ring")


def one_dies(rank: Rank, how: int, count: int) -> None:
    dist.barrier()
    if rank.rank == 1:
        os.kill(os.getpid(), how)
    dist.all_reduce(torch.ones(count))


@pytest.mark.parametrize("count", [4, 3_000_000])
def test_killed_rank_is_named_at_once(count: int) -> None:
    started = time.monotonic()
    first, killed, third = outcomes(one_dies, 3, signal.SIGKILL, count, backend="ring")
    assert time.monotonic() - started < 20
    assert killed.ended == f"died with exit code -{signal.SIGKILL:d}"
    for outcome in (first, third):
        assert isinstance(outcome.error, dist.DistBackendError)
        assert "rank 1 will not answer" in text_of(outcome)
        assert "has ended" in text_of(outcome)


def one_is_killed_inside(rank: Rank) -> None:
    dist.barrier()
    tensor = torch.ones(2_000_000)
    if rank.rank == 1:
        rank.store.set("pid", str(os.getpid()))
    elif rank.rank == 0:
        pid = int(rank.store.get("pid"))
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(50)]
        works[3].wait()
        os.kill(pid, signal.SIGKILL)
        for work in works:
            work.wait()
        return
    for _ in range(50):
        dist.all_reduce(tensor)


def test_rank_killed_inside_a_collective() -> None:
    first, killed, third = outcomes(one_is_killed_inside, 3, backend="ring", timeout=40)
    assert killed.ended.startswith("died")
    for outcome in (first, third):
        assert "rank 1" in text_of(outcome)


def one_stops(rank: Rank) -> str:
    rank.meet()
    init(rank, timeout=SHORT)
    dist.barrier()
    if rank.rank == 1:
        rank.store.set("pid", str(os.getpid()))
        time.sleep(60)
    if rank.rank == 0:
        pid = int(rank.store.get("pid"))
        os.kill(pid, signal.SIGSTOP)
        rank.store.set("stopped", "1")
    rank.store.wait(["stopped"])
    try:
        dist.all_reduce(torch.ones(100_000))
    except dist.DistBackendError as error:
        return str(error)
    finally:
        if rank.rank == 0:
            rank.store.wait(["other raised"])
            os.kill(pid, signal.SIGKILL)
        else:
            rank.store.set("other raised", "1")
    return "no error"


def test_stopped_rank_is_named_by_the_time_out() -> None:
    first, stopped, third = outcomes(one_stops, 3, timeout=40)
    assert stopped.ended.startswith("died")
    for outcome in (first, third):
        assert "Timed out" in outcome.result and "rank 1" in outcome.result, outcome


def leaves(rank: Rank) -> None:
    init(rank, timeout=timedelta(seconds=30))
    dist.barrier()
    if rank.rank == 1:
        dist.destroy_process_group()
        rank.store.wait(["raised"])
        return
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="rank 1 will not answer, it has closed"):
        dist.all_reduce(torch.ones(5))
    assert time.monotonic() - started < 10
    rank.store.set("raised", "1")


def test_rank_that_left_is_named() -> None:
    on_processes(leaves, 2)


def aborted(rank: Rank) -> str:
    group = dist.new_group([0, 1])
    dist.barrier(group=group)
    if rank.rank == 0:
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        time.sleep(0.2)
        group.abort()
    else:
        work = None
        rank.store.wait(["aborted"])
    with pytest.raises(dist.DistBackendError, match="abort") as raised:
        if work is not None:
            rank.store.set("aborted", "1")
            work.wait()
        else:
            dist.all_reduce(torch.ones(5), group=group)
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor[0] == 2
    return str(raised.value)


def test_abort_ends_it_for_everybody() -> None:
    first, second = on_processes(aborted, 2, backend="ring")
    assert "aborted" in first
    assert "rank 0" in second


def pending_at_the_end(rank: Rank) -> None:
    for generation in range(3):
        init(rank, f"generation {generation}")
        tensor = torch.full((50_000,), float(rank.rank + 1))
        works = [dist.all_reduce(tensor.clone(), async_op=True) for _ in range(10)]
        if generation == 1:
            works[-1].wait()
        dist.destroy_process_group()
        for work in works:
            try:
                work.wait()
            except dist.DistBackendError as error:
                assert "closed" in str(error)


def test_destroyed_with_works_pending_and_made_again() -> None:
    on_processes(pending_at_the_end, 3)


def ring_of_threads(rank: Rank) -> float:
    import ringcomm

    ring = ringcomm._C.create_backend(
        rank.store,
        rank.rank,
        rank.world_size,
        timedelta(seconds=20),
        algorithms=[],
        host_of=[],
        num_channels=4,
        slice_nbytes=4 << 20,
        max_ctas=32,
        group_name="threads",
        global_ranks=[],
    )
    tensor = torch.full((40_000,), float(rank.rank))
    for _ in range(3):
        ring.allreduce([tensor]).wait()
    small = torch.ones(3)
    ring.broadcast(small, 1).wait()
    ring.barrier().wait()
    return tensor[0].item()


def test_ranks_are_threads_of_one_process() -> None:
    assert on_threads(ring_of_threads, 4) == [6.0 * 16] * 4
