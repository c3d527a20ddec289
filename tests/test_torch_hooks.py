"""The hooks that torch attaches to backends, and what its own flight recorder makes of them."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import flight_records
import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore

import ringcomm

SHORT = timedelta(seconds=1)

needs_abort_hooks = pytest.mark.skipif(
    not hasattr(c10d.Backend, "register_abort_hook"), reason="torch 2.14 and newer have them"
)
needs_completion_hooks = pytest.mark.skipif(
    not hasattr(c10d.Backend, "supports_abort_hooks"), reason="torch 2.15 and newer have them"
)
needs_python_methods = pytest.mark.skipif(
    not hasattr(c10d.Backend, "options"), reason="torch 2.14 and newer show these to Python"
)


def init(rank: Rank) -> dist.ProcessGroup:
    rank.meet()
    flight_records.init(rank, SHORT)
    return dist.group.WORLD


def has_hooks_called_at_failures(rank: Rank) -> list[str]:
    backend = init(rank)._get_backend(torch.device("cpu"))
    called: list[str] = []
    backend.register_abort_hook(-1, lambda: called.append("one"))
    backend.register_abort_hook(-2, lambda: called.append("another"))
    with pytest.raises(dist.DistBackendError, match="disagree"):
        dist.all_reduce(torch.ones(2 + rank.rank))
    dist.all_reduce(torch.ones(2))
    assert called == []  # the group stays usable
    backend.unregister_abort_hook(-2)
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            dist.all_reduce(torch.ones(2))
        rank.store.set("timed out", "1")
    else:
        rank.store.wait(["timed out"])
        dist.distributed_c10d._abort_process_group()
    return called


@needs_abort_hooks
def test_abort_hooks_are_called_where_a_group_fails_or_is_aborted() -> None:
    for called in on_processes(has_hooks_called_at_failures, 2):
        assert called and set(called) == {"one"}


def states(names: set[str]) -> dict[str, str]:
    """Of torch's own record of the backend "ring", by operation."""
    entries = pickle.loads(c10d._dump_fr_trace(backend="ring"))["entries"]
    found = {entry["profiling_name"].removeprefix("ring:"): entry["state"] for entry in entries}
    return {name: state for name, state in found.items() if name.split()[0] in names}


def is_recorded_by_torch(rank: Rank) -> None:
    os.environ["RINGCOMM_FLIGHT_RECORDS"] = "0"  # else "ring" records its calls itself
    init(rank)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0, async_op=True).wait()
    dist.all_gather_into_tensor(torch.ones(2000), tensor)
    if rank.rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    dist.barrier()
    names = {"all_reduce", "broadcast", "_all_gather_base", "send", "recv"}
    seen = states(names)
    assert len(seen) == 4, seen
    assert set(seen.values()) == {"completed"}, seen
    # Nobody answers this one until it has been looked at.
    if rank.rank == 0:
        work = dist.reduce(tensor, 0, async_op=True)
        assert states({"reduce"}) == {"reduce": "scheduled"}
        rank.store.set("looked", "1")
        work.wait()
        assert states({"reduce"}) == {"reduce": "completed"}
    else:
        rank.store.wait(["looked"])
        dist.reduce(tensor, 0)


@needs_completion_hooks
def test_torch_s_own_recorder_knows_what_has_completed() -> None:
    on_processes(is_recorded_by_torch, 2)


def is_recorded_once(rank: Rank) -> None:
    init(rank)
    for is_async in (False, True, False):
        work = dist.all_reduce(torch.ones(10), async_op=is_async)
        if work is not None:
            work.wait()
    assert not dist.distributed_c10d._world.pg_flight_recorder_hooks
    assert not pickle.loads(c10d._dump_fr_trace(backend="ring"))["entries"]
    own = pickle.loads(Path(ringcomm.flight.dump(f"{rank.rank}.trace")).read_bytes())["entries"]
    assert [entry["state"] for entry in own] == ["completed"] * 3


@needs_completion_hooks
def test_a_call_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    on_processes(is_recorded_once, 2)


def is_recorded_by_both(rank: Rank) -> None:
    group = init(rank)
    hook = c10d.FlightRecorderHook.attach(group, [0, 1])  # of a program's own
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    assert states({"all_reduce"}) == {"all_reduce": "completed"}
    hook.remove()
    dist.all_reduce(torch.ones(10))
    assert len(pickle.loads(c10d._dump_fr_trace(backend="ring"))["entries"]) == 3


@needs_completion_hooks
def test_hooks_of_a_program_are_called() -> None:
    on_processes(is_recorded_by_both, 2)


def is_timed(rank: Rank) -> None:
    backend = init(rank)._get_backend(torch.device("cpu"))
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()
    with pytest.raises(RuntimeError, match="enableCollectivesTiming"):
        work._get_duration()
    backend._enable_collectives_timing()
    for count in (10, 100_000):
        work = dist.all_reduce(torch.ones(count), async_op=True)
        work.wait()
        assert 0 < work._get_duration() < SHORT.total_seconds() * 1000
    dist.all_reduce(torch.ones(10))


@needs_python_methods
def test_works_know_how_long_they_took() -> None:
    on_processes(is_timed, 2)


def has_hooks_called_at_completion(rank: Rank) -> list[int]:
    backend = init(rank)._get_backend(torch.device("cpu"))
    called: list[Any] = []
    backend._register_on_completion_hook(called.append)
    with pytest.raises(RuntimeError, match="already"):
        backend._register_on_completion_hook(called.append)
    dist.all_reduce(torch.ones(10))
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(5)]
    if rank.rank == 0:
        works.append(dist.isend(torch.ones(10), 1))
    else:
        works.append(dist.irecv(torch.ones(10), 0))
    backend._wait_for_pending_works()
    assert all(work.is_completed() for work in works)
    assert len(called) == 7
    assert all(info.active_duration.total_seconds() >= 0 for info in called)
    return [info.seq for info in called if info.op_type == c10d.OpType.ALLREDUCE]


@needs_python_methods
def test_the_hook_for_all_works() -> None:
    for sequence in on_processes(has_hooks_called_at_completion, 2):
        assert sequence == [1, 2, 3, 4, 5, 6]


def has_a_future_of_its_result(rank: Rank) -> None:
    init(rank)
    for is_async in (False, True):
        work = dist.group.WORLD.allreduce([torch.ones(3)])
        future = work.get_future_result()
        if is_async:
            work.wait()
        future.wait()
        assert future.value() == 0  # WorkResult.SUCCESS
    if rank.rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future_result()
        future.wait()
        assert future.value() == 1  # WorkResult.TIMEOUT
        rank.store.set("timed out", "1")
    else:
        rank.store.wait(["timed out"])


def test_futures_of_results() -> None:
    on_processes(has_a_future_of_its_result, 2)


def allocates(rank: Rank) -> None:
    backend = init(rank)._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    x = backend.allocate_tensor(1000, dtype=torch.float64, device=torch.device("cpu"))
    assert x.shape == (1000,) and x.dtype == torch.float64 and ringcomm.is_shared(x)
    x.fill_(1.0)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 1000
    assert backend.memory_stats()["shared_memory"] > 0


@needs_python_methods
def test_tensors_that_the_backend_allocates() -> None:
    on_processes(allocates, 2)


def merges(rank: Rank) -> None:
    backend = init(rank)._get_backend(torch.device("cpu"))
    options = backend.options
    merged = backend.merge(PrefixStore("merged", rank.store), options, 1 - rank.rank, 2)
    x = torch.full((3,), float(merged.rank()))
    merged.broadcast([x], c10d.BroadcastOptions()).wait()
    assert x.tolist() == [0.0] * 3
    assert merged.rank() == 1 - rank.rank


@needs_python_methods
def test_a_merged_group() -> None:
    on_processes(merges, 2)
