"""The hooks that torch attaches to backends, and what its own flight recorder makes of them."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore

SHORT = timedelta(seconds=1)

needs_abort_hooks = pytest.mark.skipif(
    not hasattr(c10d.Backend, "register_abort_hook"), reason="torch 2.14 and newer have them"
)
needs_completion_hooks = pytest.mark.skipif(
    not hasattr(c10d.Backend, "supports_abort_hooks"), reason="torch 2.15 and newer have them"
)


def init(rank: Rank) -> dist.ProcessGroup:
    rank.meet()
    dist.init_process_group(
        "ring",
        store=PrefixStore("default", rank.store),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=SHORT,
    )
    return dist.group.WORLD


def is_told_of_failures(rank: Rank) -> list[str]:
    backend = init(rank)._get_backend(torch.device("cpu"))
    told: list[str] = []
    backend.register_abort_hook(-1, lambda: told.append("one"))
    backend.register_abort_hook(-2, lambda: told.append("another"))
    with pytest.raises(dist.DistBackendError, match="disagree"):
        dist.all_reduce(torch.ones(2 + rank.rank))
    dist.all_reduce(torch.ones(2))
    assert told == []  # the group stays usable
    backend.unregister_abort_hook(-2)
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            dist.all_reduce(torch.ones(2))
        rank.store.set("timed out", "1")
    else:
        rank.store.wait(["timed out"])
        dist.distributed_c10d._abort_process_group()
    return told


@needs_abort_hooks
def test_abort_hooks_are_called_where_a_group_fails_or_is_aborted() -> None:
    for told in on_processes(is_told_of_failures, 2):
        assert told and set(told) == {"one"}


def states(names: set[str]) -> dict[str, str]:
    """Of torch's own record of the backend "ring", by operation."""
    entries = pickle.loads(c10d._dump_fr_trace(backend="ring"))["entries"]
    found = {entry["profiling_name"].removeprefix("ring:"): entry["state"] for entry in entries}
    return {name: state for name, state in found.items() if name.split()[0] in names}


def is_recorded_by_torch(rank: Rank) -> None:
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
