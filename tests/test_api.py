"""The direct calls: each does what torch.distributed defines, on ring groups and riding on gloo."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from ranks import Rank, on_processes
from torch.distributed import ProcessGroup, ReduceOp

import ringcomm
from ringcomm import _C, _fast_path

WORLD_SIZE = 3
COUNT = 7


def given(rank: int, part: int = 0) -> torch.Tensor:
    """What rank `rank` has for `part`; small integers, so that every sum is exact."""
    return torch.arange(COUNT, dtype=torch.float32) + 10 * rank + 100 * part


def total(part: int = 0) -> torch.Tensor:
    return sum((given(r, part) for r in range(WORLD_SIZE)), torch.zeros(COUNT))


def all_reduce(rank: int, api: Any, **kwargs: Any) -> Any:
    tensor = given(rank)
    return api.all_reduce(tensor, **kwargs), tensor, total()


def all_reduce_max(rank: int, api: Any, **kwargs: Any) -> Any:
    tensor = given(rank)
    return api.all_reduce(tensor, ReduceOp.MAX, **kwargs), tensor, given(WORLD_SIZE - 1)


def reduce_scatter(rank: int, api: Any, **kwargs: Any) -> Any:
    output = torch.empty(COUNT)
    inputs = [given(rank, part) for part in range(WORLD_SIZE)]
    return api.reduce_scatter(output, inputs, **kwargs), output, total(rank)


def reduce_scatter_tensor(rank: int, api: Any, **kwargs: Any) -> Any:
    output = torch.empty(COUNT)
    whole = torch.cat([given(rank, part) for part in range(WORLD_SIZE)])
    return api.reduce_scatter_tensor(output, whole, **kwargs), output, total(rank)


def all_gather(rank: int, api: Any, **kwargs: Any) -> Any:
    outputs = list(torch.empty(WORLD_SIZE, COUNT).unbind())
    work = api.all_gather(outputs, given(rank), **kwargs)
    return work, outputs, [given(r) for r in range(WORLD_SIZE)]


def all_gather_into_tensor(rank: int, api: Any, **kwargs: Any) -> Any:
    output = torch.empty(WORLD_SIZE, COUNT)
    work = api.all_gather_into_tensor(output, given(rank), **kwargs)
    return work, output, torch.stack([given(r) for r in range(WORLD_SIZE)])


def broadcast(rank: int, api: Any, **kwargs: Any) -> Any:
    tensor = given(rank)
    return api.broadcast(tensor, 1, **kwargs), tensor, given(1)


def broadcast_group_src(rank: int, api: Any, **kwargs: Any) -> Any:
    tensor = given(rank)
    return api.broadcast(tensor, group_src=2, **kwargs), tensor, given(2)


def reduce(rank: int, api: Any, **kwargs: Any) -> Any:
    tensor = given(rank)
    return api.reduce(tensor, 1, **kwargs), tensor, total() if rank == 1 else given(rank)


def gather(rank: int, api: Any, **kwargs: Any) -> Any:
    outputs = list(torch.empty(WORLD_SIZE, COUNT).unbind()) if rank == 2 else None
    work = api.gather(given(rank), outputs, dst=2, **kwargs)
    return work, outputs or [], [given(r) for r in range(WORLD_SIZE)] if rank == 2 else []


def scatter(rank: int, api: Any, **kwargs: Any) -> Any:
    tensor = torch.empty(COUNT)
    inputs = [given(0, part) for part in range(WORLD_SIZE)] if rank == 0 else None
    return api.scatter(tensor, inputs, **kwargs), tensor, given(0, rank)


def all_to_all(rank: int, api: Any, **kwargs: Any) -> Any:
    outputs = list(torch.empty(WORLD_SIZE, COUNT).unbind())
    inputs = [given(rank, part) for part in range(WORLD_SIZE)]
    return (
        api.all_to_all(outputs, inputs, **kwargs),
        outputs,
        [given(r, rank) for r in range(WORLD_SIZE)],
    )


def all_to_all_single(rank: int, api: Any, **kwargs: Any) -> Any:
    # Rank r sends i + 1 rows to rank i.
    rows = list(range(1, WORLD_SIZE + 1))
    whole = torch.full((sum(rows), 2), float(rank))
    output = torch.empty((rank + 1) * WORLD_SIZE, 2)
    work = api.all_to_all_single(output, whole, [rank + 1] * WORLD_SIZE, rows, **kwargs)
    expected = torch.arange(float(WORLD_SIZE)).repeat_interleave(rank + 1)
    return work, output, expected[:, None].expand(-1, 2)


def barrier(rank: int, api: Any, **kwargs: Any) -> Any:
    return api.barrier(**kwargs), [], []


CALLS: list[Callable[..., Any]] = [
    all_reduce,
    all_reduce_max,
    reduce_scatter,
    reduce_scatter_tensor,
    all_gather,
    all_gather_into_tensor,
    broadcast,
    broadcast_group_src,
    reduce,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    barrier,
]


def every_call(rank: Rank) -> None:
    """Each with and without async_op, with the default group and with group= a group of all."""
    everyone = dist.new_group(list(range(rank.world_size)))
    for call in CALLS:
        for kwargs in ({}, {"async_op": True}, {"group": everyone}):
            work, got, expected = call(rank.rank, ringcomm, **kwargs)
            if kwargs.get("async_op"):
                assert work.wait()
            else:
                assert work is None, f"{call.__name__} returned {work}"
            torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=call.__name__)
    ringcomm.monitored_barrier()
    ringcomm.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)
    assert ringcomm.get_rank() == rank.rank
    assert ringcomm.get_world_size() == rank.world_size


@pytest.mark.parametrize("backend", ["ring", "gloo", "cpu:ring", "cpu:gloo"])
def test_every_collective(backend: str) -> None:
    on_processes(every_call, WORLD_SIZE, backend=backend)


def messages(rank: Rank) -> None:
    this, n = rank.rank, rank.world_size
    following, previous = (this + 1) % n, (this - 1) % n
    got = torch.empty(COUNT)
    ringcomm.init()

    work = ringcomm.isend(given(this), following, tag=3)
    assert ringcomm.recv(got, previous, tag=3) == previous
    assert work is not None and work.wait()
    assert torch.equal(got, given(previous))

    work = ringcomm.irecv(got, group_src=previous)
    ringcomm.send(given(this, 1), group_dst=following)
    assert work is not None and work.wait()
    assert torch.equal(got, given(previous, 1))

    if this == 0:
        sources = {ringcomm.recv(got, tag=1) for _ in range(1, n)}
        assert sources == set(range(1, n))
    else:
        ringcomm.send(given(this), 0, tag=1)

    backends = set()

    def watch(name: str) -> None:
        real = getattr(ProcessGroup, name)

        def call(group: ProcessGroup, *arguments: Any) -> Any:
            backends.add(dist.get_backend(group))
            return real(group, *arguments)

        setattr(ProcessGroup, name, call)

    watch("send")
    watch("recv")
    for api in (ringcomm, dist):
        operations = [
            api.P2POp(api.irecv, got, previous),
            api.P2POp(api.isend, given(this, 2), group_peer=following),
        ]
        for work in ringcomm.batch_isend_irecv(operations):
            assert work.wait()
        assert torch.equal(got, given(previous, 2))
        ringcomm.barrier()
        got.zero_()
    assert ringcomm.batch_isend_irecv([]) == []
    assert "gloo" not in backends


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_messages(backend: str) -> None:
    on_processes(messages, WORLD_SIZE, backend=backend)


def subgroups(rank: Rank) -> list[str]:
    """Overlapping groups of the default backend, and of "ring", used in different orders."""
    groups = [([2, 0], dist.new_group([0, 2])), ([1, 2], ringcomm.new_group([1, 2]))]
    for members, group in groups:
        tensor = given(rank.rank)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ringcomm.all_reduce(tensor, group=group)
            ringcomm.broadcast(tensor, members[0], group=group)
            ringcomm.monitored_barrier(group)
        if rank.rank in members:
            assert torch.equal(tensor, given(members[0]) + given(members[1]))
            assert dist.get_process_group_ranks(group) == sorted(members)
        else:
            assert torch.equal(tensor, given(rank.rank))
            assert len(caught) == 3
    # Groups made after a ring rides on some ranks only have the same name on all ranks.
    later = dist.new_group([0, 1, 2])
    tensor = given(rank.rank)
    ringcomm.all_reduce(tensor, group=later)
    dist.all_reduce(tensor, ReduceOp.MAX, group=later)
    assert torch.equal(tensor, total())
    return [later.group_name]


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_subgroups(backend: str) -> None:
    names = on_processes(subgroups, WORLD_SIZE, backend=backend)
    assert names.count(names[0]) == WORLD_SIZE


def sorted_or_not(rank: Rank) -> None:
    """The group's order of ranks is the ring's."""
    group = ringcomm.new_group([2, 1], use_local_synchronization=True) if rank.rank else None
    if group is not None:
        outputs = list(torch.empty(2, COUNT).unbind())
        ringcomm.all_gather(outputs, given(rank.rank), group=group)
        order = dist.get_process_group_ranks(group)
        assert [torch.equal(t, given(r)) for t, r in zip(outputs, order, strict=True)] == [True] * 2


def test_new_group_of_its_members_alone() -> None:
    on_processes(sorted_or_not, WORLD_SIZE, backend="gloo")


def groups_that_end(rank: Rank) -> None:
    for attempt in range(3):
        store = dist.PrefixStore(str(attempt), rank.store)
        backend = ("ring", "gloo", "gloo")[attempt]
        dist.init_process_group(backend, store=store, rank=rank.rank, world_size=rank.world_size)
        subgroup = dist.new_group([0, 1])
        tensor = given(rank.rank)
        ringcomm.all_reduce(tensor)
        assert torch.equal(tensor, total())
        if rank.rank < 2:
            ringcomm.all_reduce(tensor, group=subgroup)
            (ringcomm if attempt == 1 else dist).destroy_process_group(subgroup)
            for call in (ringcomm.all_reduce, ringcomm.broadcast):
                with pytest.raises(ValueError, match="closed"):
                    call(tensor, 0, group=subgroup) if call is ringcomm.broadcast else call(
                        tensor, group=subgroup
                    )
            del subgroup, call
            gc.collect()
            open_groups = len(c10d._world.pg_map)
            assert open_groups == (1 if backend == "ring" else 2), "a ring outlives its group"
        ringcomm.destroy_process_group()
        with pytest.raises(ValueError, match="no default group"):
            ringcomm.all_reduce(tensor)
        with pytest.raises(ValueError, match="no default group"):
            ringcomm.barrier()
    assert not _fast_path._remembered and _C.num_remembered_groups() == 0


def test_groups_that_end() -> None:
    on_processes(groups_that_end, WORLD_SIZE)


def bad_arguments(rank: Rank) -> None:
    tensor = given(rank.rank)
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (TypeError, "Tensor", lambda: ringcomm.all_reduce([1.0, 2.0])),
        (TypeError, "", lambda: ringcomm.all_reduce(tensor, "sum")),
        (TypeError, "process group", lambda: ringcomm.all_reduce(tensor, group="default")),
        (TypeError, "process group", lambda: ringcomm.barrier(group=[0, 1])),
        (ValueError, "BAND", lambda: ringcomm.all_reduce(tensor, ReduceOp.BAND)),
        (ValueError, "", lambda: ringcomm.broadcast(tensor, rank.world_size)),
        (ValueError, "", lambda: ringcomm.broadcast(tensor, 0, group_src=0)),
        (ValueError, "", lambda: ringcomm.broadcast(tensor)),
        (ValueError, "one per rank", lambda: ringcomm.all_gather([tensor], tensor)),
        (TypeError, "", lambda: ringcomm.all_gather(tensor, tensor)),
        (ValueError, "dtype", lambda: ringcomm.all_gather([tensor.int()] * 3, tensor)),
        (ValueError, "elements", lambda: ringcomm.reduce_scatter_tensor(tensor, tensor)),
        (ValueError, "add up", lambda: ringcomm.all_to_all_single(tensor, tensor, [1] * 3, None)),
        (ValueError, "same", lambda: ringcomm.send(tensor, rank.rank)),
        (ValueError, "", lambda: ringcomm.send(tensor, rank.world_size)),
        (TypeError, "P2POp", lambda: ringcomm.batch_isend_irecv([tensor])),
        (ValueError, "", lambda: ringcomm.P2POp(ringcomm.broadcast, tensor, 0)),
        (ValueError, "duplicate", lambda: ringcomm.new_group([0, 0])),
        (NotImplementedError, "sparse", lambda: ringcomm.broadcast(tensor.to_sparse(), 0)),
    ]
    for kind, words, call in cases:
        with pytest.raises(kind, match=f"(?is){words}"):
            call()
    # Nothing was sent: the group works as if nothing had happened.
    ringcomm.all_reduce(tensor)
    assert torch.equal(tensor, total())


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_bad_arguments(backend: str) -> None:
    on_processes(bad_arguments, WORLD_SIZE, backend=backend)


def coalesced(rank: Rank) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [given(rank.rank, part) for part in range(2)]
    with _coalescing_manager():
        for tensor in tensors:
            ringcomm.all_reduce(tensor)
        assert torch.equal(tensors[0], given(rank.rank)), "it waits for the others"
    assert torch.equal(tensors[0], total(0)) and torch.equal(tensors[1], total(1))


def test_coalescing() -> None:
    on_processes(coalesced, WORLD_SIZE, backend="ring")


def compiled(rank: Rank) -> None:
    ringcomm.init()

    @torch.compile(backend="eager", fullgraph=True)
    def doubled_sum(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor * 2
        ringcomm.all_reduce(tensor)
        return tensor + 1

    assert torch.equal(doubled_sum(given(rank.rank)), 2 * total() + 1)

    @torch.compile(backend="eager", fullgraph=True)
    def gathered(tensor: torch.Tensor) -> torch.Tensor:
        everybodys = tensor.new_empty(tensor.numel() * WORLD_SIZE)
        ringcomm.all_gather_into_tensor(everybodys, tensor * 2)
        return everybodys + 1

    expected = torch.cat([2 * given(r).flatten() + 1 for r in range(rank.world_size)])
    assert torch.equal(gathered(given(rank.rank).flatten()), expected)


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_compiled(backend: str) -> None:
    on_processes(compiled, WORLD_SIZE, backend=backend)


def times_out(rank: Rank) -> str:
    ring = ringcomm.init(timeout=timedelta(seconds=1))
    assert ringcomm.init() is ring
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError) as raised:
            ringcomm.all_reduce(given(0))
        return str(raised.value)
    with pytest.raises(dist.DistBackendError):
        dist.barrier(ring) if rank.rank == 2 else ringcomm.barrier()
    return ""


@pytest.mark.parametrize("backend", ["gloo"])
def test_init_sets_the_timeout_and_ranks_that_differ_are_named(backend: str) -> None:
    message, *_ = on_processes(times_out, WORLD_SIZE, backend=backend)
    assert "all_reduce" in message and "barrier" in message
