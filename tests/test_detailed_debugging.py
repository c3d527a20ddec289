"""TORCH_DISTRIBUTED_DEBUG=DETAIL: torch puts a wrapper around every backend, and checks calls.

Then the direct calls go through the wrapper, too, and what asks the backend itself looks inside.
"""

from __future__ import annotations

import inspect
import os
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm

COUNT = 4


def given(rank: int, part: int = 0) -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.float32) + 10 * rank + 100 * part


def total(world_size: int, part: int = 0) -> torch.Tensor:
    return torch.stack([given(r, part) for r in range(world_size)]).sum(0)


def join(rank: Rank, backend: str = "ring") -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    store = dist.PrefixStore("detail", rank.store)
    ringcomm.init_process_group(backend, store=store, rank=rank.rank, world_size=rank.world_size)


def is_wrapped(group: dist.ProcessGroup) -> bool:
    return hasattr(group._get_backend(torch.device("cpu")), "wrapped_pg")


class Calls:
    """Each public function once, with what it must return or leave in its outputs."""

    def __init__(self, rank: Rank) -> None:
        self.this, self.n = rank.rank, rank.world_size
        self.all = [given(r) for r in range(self.n)]
        self.parts = [given(self.this, part) for part in range(self.n)]

    def init(self) -> None:
        assert ringcomm.init().size() == self.n

    def init_process_group(self) -> None:
        """`join` has called it."""
        assert is_wrapped(ringcomm.init())

    def is_available(self) -> None:
        assert ringcomm.is_available()

    def is_initialized(self) -> None:
        assert ringcomm.is_initialized()

    def is_torchelastic_launched(self) -> None:
        assert not ringcomm.is_torchelastic_launched()

    def get_rank(self) -> None:
        assert ringcomm.get_rank() == self.this

    def get_world_size(self) -> None:
        assert ringcomm.get_world_size() == self.n

    def get_backend(self) -> None:
        assert ringcomm.get_backend() in ("ring", "gloo")

    def get_backend_config(self) -> None:
        assert "cpu:" in ringcomm.get_backend_config()

    def get_group_rank(self) -> None:
        assert ringcomm.get_group_rank(dist.group.WORLD, self.this) == self.this

    def get_global_rank(self) -> None:
        assert ringcomm.get_global_rank(dist.group.WORLD, self.this) == self.this

    def get_process_group_ranks(self) -> None:
        assert ringcomm.get_process_group_ranks(dist.group.WORLD) == list(range(self.n))

    def get_pg_count(self) -> None:
        assert ringcomm.get_pg_count() >= 1

    def get_node_local_rank(self) -> None:
        assert ringcomm.get_node_local_rank(fallback_rank=5) == 5

    def all_reduce(self) -> None:
        mine = given(self.this)
        ringcomm.all_reduce(mine)
        assert torch.equal(mine, total(self.n))

    def all_reduce_coalesced(self) -> None:
        mine = [given(self.this), given(self.this, 1)]
        ringcomm.all_reduce_coalesced(mine)
        assert torch.equal(torch.stack(mine), torch.stack([total(self.n), total(self.n, 1)]))

    def sum_of_parts(self) -> None:
        group = ringcomm.new_group(reproducible="world")
        for count in (1, 2):
            total = ringcomm.sum_of_parts([torch.ones(3)] * count, group)
            assert total.tolist() == [float(count * self.n)] * 3

    def reduce(self) -> None:
        mine = given(self.this)
        ringcomm.reduce(mine, 1)
        assert self.this != 1 or torch.equal(mine, total(self.n))

    def reduce_scatter(self) -> None:
        output = torch.empty(COUNT)
        ringcomm.reduce_scatter(output, self.parts)
        assert torch.equal(output, total(self.n, self.this))

    def reduce_scatter_tensor(self) -> None:
        for function in (ringcomm.reduce_scatter_tensor, ringcomm.reduce_scatter_single):
            output = torch.empty(COUNT)
            function(output, torch.cat(self.parts))
            assert torch.equal(output, total(self.n, self.this))

    def all_gather(self) -> None:
        outputs = list(torch.empty(self.n, COUNT).unbind())
        ringcomm.all_gather(outputs, given(self.this))
        assert torch.equal(torch.stack(outputs), torch.stack(self.all))

    def all_gather_into_tensor(self) -> None:
        for function in (ringcomm.all_gather_into_tensor, ringcomm.all_gather_single):
            output = torch.empty(self.n, COUNT)
            function(output, given(self.this))
            assert torch.equal(output, torch.stack(self.all))

    def all_gather_coalesced(self) -> None:
        outputs = [[torch.empty(COUNT)] for _ in range(self.n)]
        ringcomm.all_gather_coalesced(outputs, [given(self.this)])
        assert torch.equal(torch.cat([each[0] for each in outputs]), torch.cat(self.all))

    def broadcast(self) -> None:
        mine = given(self.this)
        ringcomm.broadcast(mine, 1)
        assert torch.equal(mine, given(1))

    def gather(self) -> None:
        outputs = list(torch.empty(self.n, COUNT).unbind()) if self.this == 0 else None
        ringcomm.gather(given(self.this), outputs)
        assert outputs is None or torch.equal(torch.stack(outputs), torch.stack(self.all))

    def gather_single(self) -> None:
        for function in (ringcomm.gather_single, ringcomm.gather_into_tensor):
            output = torch.empty(self.n, COUNT) if self.this == 0 else None
            function(given(self.this), output)
            assert output is None or torch.equal(output, torch.stack(self.all))

    def scatter(self) -> None:
        output = torch.empty(COUNT)
        ringcomm.scatter(output, self.all if self.this == 0 else None)
        assert torch.equal(output, given(self.this))

    def all_to_all(self) -> None:
        outputs = list(torch.empty(self.n, COUNT).unbind())
        ringcomm.all_to_all(outputs, self.parts)
        assert torch.equal(outputs[1], given(1, self.this))

    def all_to_all_single(self) -> None:
        output = torch.empty(self.n, COUNT)
        ringcomm.all_to_all_single(output, torch.stack(self.parts))
        assert torch.equal(output[1], given(1, self.this))

    def barrier(self) -> None:
        ringcomm.barrier()
        ringcomm.barrier(timeout=timedelta(seconds=20))

    def monitored_barrier(self) -> None:
        ringcomm.monitored_barrier()

    def send(self) -> None:
        """And `recv`, `isend`, `irecv`, `batch_isend_irecv`, by which two ranks exchange."""
        got, other = torch.empty(COUNT), 1 - self.this
        if self.this == 0:
            ringcomm.send(given(0), 1)
            ringcomm.recv(got, 1)
        else:
            ringcomm.recv(got, 0)
            ringcomm.send(given(1), 0)
        assert torch.equal(got, given(other))
        works = [ringcomm.isend(given(self.this, 1), other), ringcomm.irecv(got, other)]
        for work in works:
            assert work is not None and work.wait()
        assert torch.equal(got, given(other, 1))
        ops = [
            ringcomm.P2POp(ringcomm.isend, given(self.this, 2), other),
            ringcomm.P2POp(ringcomm.irecv, got, other),
        ]
        for work in ringcomm.batch_isend_irecv(ops):
            work.wait()
        assert torch.equal(got, given(other, 2))

    def all_gather_object(self) -> None:
        objects: list[Any] = [None] * self.n
        ringcomm.all_gather_object(objects, str(self.this))
        assert objects == ["0", "1"]

    def gather_object(self) -> None:
        objects: list[Any] | None = [None] * self.n if self.this == 0 else None
        ringcomm.gather_object(str(self.this), objects)
        assert objects in (None, ["0", "1"])

    def broadcast_object_list(self) -> None:
        objects = [self.this]
        ringcomm.broadcast_object_list(objects, 1)
        assert objects == [1]

    def scatter_object_list(self) -> None:
        output: list[Any] = [None]
        ringcomm.scatter_object_list(output, ["a", "b"] if self.this == 0 else None)
        assert output == ["ab"[self.this]]

    def send_object_list(self) -> None:
        """And `recv_object_list`."""
        if self.this == 0:
            ringcomm.send_object_list(["a"], 1)
            return
        objects: list[Any] = [None]
        assert ringcomm.recv_object_list(objects, 0) == 0 and objects == ["a"]

    def new_group(self) -> None:
        """And `destroy_process_group`."""
        group = ringcomm.new_group([0, 1], timeout=timedelta(seconds=20), algorithm="direct")
        mine = given(self.this)
        ringcomm.all_reduce(mine, group=group)
        assert torch.equal(mine, total(self.n)) and is_wrapped(group)
        ringcomm.destroy_process_group(group)

    def new_subgroups(self) -> None:
        """And `new_subgroups_by_enumeration`."""
        own, _ = ringcomm.new_subgroups(2)
        also_own, _ = ringcomm.new_subgroups_by_enumeration([[0, 1]])
        for group in (own, also_own):
            assert ringcomm.get_world_size(group) == 2

    def topology(self) -> None:
        found = ringcomm.topology()
        assert [host.ranks for host in found.hosts] == [(0, 1)]

    def status(self) -> None:
        assert len(ringcomm.status()[0].ranks) == self.n

    def stragglers(self) -> None:
        assert all(0 <= each.rank < self.n for each in ringcomm.stragglers())

    def dump(self) -> None:
        path = ringcomm.dump(f"record{self.this}")
        assert os.path.getsize(path) > 0
        os.remove(path)

    def shared_memory(self) -> None:
        """And `empty` and `is_shared`."""
        with ringcomm.shared_memory():
            mine = given(self.this)
        assert ringcomm.is_shared(mine) and ringcomm.is_shared(ringcomm.empty(3))
        ringcomm.all_reduce(mine)
        assert torch.equal(mine, total(self.n))


# What a method above has with another, and what has a test of its own.
TOGETHER = {
    "reduce_scatter_single": "reduce_scatter_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "gather_into_tensor": "gather_single",
    **dict.fromkeys(("recv", "isend", "irecv", "batch_isend_irecv"), "send"),
    "recv_object_list": "send_object_list",
    "new_subgroups_by_enumeration": "new_subgroups",
    **dict.fromkeys(("empty", "is_shared"), "shared_memory"),
    "destroy_process_group": "new_group",
}
APART = {"shrink", "set_timeout", "ProcessGroupRing"}


def every_function(rank: Rank, backend: str) -> list[str]:
    join(rank, backend)
    failed = []
    calls = Calls(rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for name, call in inspect.getmembers(calls, inspect.ismethod):
            if name.startswith("_"):
                continue
            try:
                call()
            except Exception as error:
                failed.append(f"{name}: {type(error).__name__}: {error}"[:300])
    return failed


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_every_function_works(backend: str) -> None:
    assert on_processes(every_function, 2, backend) == [[], []]


def test_every_function_was_called() -> None:
    called = {name for name, _ in inspect.getmembers(Calls, inspect.isfunction)} | APART
    public = {name for name in ringcomm.__all__ if inspect.isroutine(getattr(ringcomm, name))}
    assert public - called - set(TOGETHER) == set()
    assert set(TOGETHER.values()) <= called


def apart(rank: Rank) -> str:
    """A timeout that is set, a ring without a group, a message that is refused, and shrinking."""
    join(rank)
    store = dist.PrefixStore("its own", rank.store)
    ring: Any = ringcomm.ProcessGroupRing(store, rank.rank, rank.world_size)
    mine = given(rank.rank)
    ring.allreduce([mine]).wait()
    assert torch.equal(mine, total(rank.world_size))

    refused = ""
    if rank.rank == 0:
        with pytest.raises(ValueError):
            ringcomm.send(torch.ones(2).to(torch.complex64).conj(), 1)
    else:
        with pytest.raises(dist.DistBackendError) as raised:
            ringcomm.recv(torch.empty(2, dtype=torch.complex64), 0)
        refused = str(raised.value)
    ringcomm.barrier()

    if hasattr(dist, "set_timeout"):  # the wrapper of older versions of torch refuses it
        ringcomm.set_timeout(timedelta(milliseconds=200))
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            ringcomm.recv(mine, 1 - rank.rank)
        ringcomm.set_timeout(timedelta(seconds=20))
    new = ringcomm.shrink()
    mine = given(rank.rank)
    ringcomm.all_reduce(mine)
    assert torch.equal(mine, total(rank.world_size)) and new is dist.group.WORLD
    return refused


def test_a_refused_message_is_announced_and_a_group_shrinks() -> None:
    _, refused = on_processes(apart, 2, timeout=30)
    assert "conjugated" in refused
