"""Groups: subgroups, several at once, other names of the backend, debug mode."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import values
from ranks import Rank, on_processes
from torch.distributed import PrefixStore
from torch.distributed.device_mesh import init_device_mesh

import ringcomm


def sum_in(group: dist.ProcessGroup | None, value: float, count: int = 4) -> float:
    tensor = torch.full((count,), value)
    dist.all_reduce(tensor, group=group)
    assert (tensor == tensor[0]).all()
    return tensor[0].item()


def several_groups(rank: Rank) -> None:
    odd = dist.new_group([1, 3])
    low = dist.new_group([0, 1, 2])
    backwards = dist.new_group([3, 0])
    alone = dist.new_group([2])
    for count in (4, 50_000):
        value = float(rank.rank)
        assert sum_in(None, value, count) == 6
        if rank.rank in (1, 3):
            assert sum_in(odd, value, count) == 4
        if rank.rank in (0, 1, 2):
            assert sum_in(low, value, count) == 3
        if rank.rank in (0, 3):
            assert sum_in(backwards, value, count) == 3
            gathered = torch.empty(2)
            dist.all_gather_into_tensor(gathered, torch.tensor([value]), group=backwards)
            assert gathered.tolist() == [0, 3]
            tensor = torch.tensor([value])
            dist.broadcast(tensor, 3, group=backwards)
            assert tensor.item() == 3
        if rank.rank == 2:
            assert sum_in(alone, value, count) == 2
    if rank.rank in (1, 3):
        dist.destroy_process_group(odd)
    assert sum_in(None, 1.0) == 4


def test_several_groups_at_once() -> None:
    on_processes(several_groups, 4, backend="ring")


def mesh_of_a_bound_group(rank: Rank) -> None:
    """As on a machine with accelerators, with device_id=: there a DeviceMesh splits the group."""
    accelerator = torch.device("cpu", 0)
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *arguments, **options: accelerator
    world = dist.group.WORLD
    assert world is not None
    world.bound_device_id = accelerator
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    assert sum_in(mesh.get_group("replicate"), float(rank.rank)) == 2 + 2 * (rank.rank % 2)
    assert sum_in(mesh.get_group("shard"), float(rank.rank)) == 1 + 4 * (rank.rank // 2)
    assert sum_in(None, 1.0) == 4
    backend = world._get_backend(accelerator)
    assert backend.supports_splitting
    backend.perform_nocolor_split(accelerator)  # torch does, outside of a new group
    backend.eager_connect_single_device(accelerator)


def test_a_mesh_of_two_dimensions_splits_a_group_that_is_bound_to_a_device() -> None:
    on_processes(mesh_of_a_bound_group, 4, backend="ring")


def groups_at_work_together(rank: Rank) -> None:
    groups = [dist.new_group() for _ in range(3)]
    tensors = [[torch.full((30_000,), float(g + 1)) for g in range(3)] for _ in range(5)]
    works = []
    for step in tensors:
        order = range(3) if rank.rank % 2 == 0 else reversed(range(3))
        works += [dist.all_reduce(step[g], group=groups[g], async_op=True) for g in order]
    for work in works:
        work.wait()
    for step in tensors:
        for g in range(3):
            assert (step[g] == rank.world_size * (g + 1)).all()


def test_groups_need_no_common_order() -> None:
    on_processes(groups_at_work_together, 3, backend="ring")


def local_synchronization(rank: Rank) -> float:
    pair = [0, 2] if rank.rank % 2 == 0 else [1, 3]
    group = dist.new_group(pair, use_local_synchronization=True)
    return sum_in(group, float(rank.rank))


def test_new_group_with_local_synchronization() -> None:
    assert on_processes(local_synchronization, 4, backend="ring") == [2, 4, 2, 4]


def subgroups(rank: Rank) -> tuple[float, float]:
    first, _ = dist.new_subgroups(2)
    second, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    return sum_in(first, float(rank.rank)), sum_in(second, float(rank.rank))


def test_subgroups() -> None:
    assert on_processes(subgroups, 4, backend="ring") == [(1, 3), (1, 3), (5, 3), (5, 3)]


def sum_of_ranks(rank: Rank) -> float:
    return sum_in(None, float(rank.rank))


@pytest.mark.parametrize("backend", ["ring", "cpu:ring", "cpu:ring,cuda:ring", "cpu:gloo"])
def test_names(backend: str) -> None:
    assert on_processes(sum_of_ranks, 2, backend=backend) == [1, 1]


def beside_gloo(rank: Rank) -> tuple[float, float, str]:
    group = dist.new_group([0, 2], backend="ring")
    inside = sum_in(group, 5.0) if rank.rank != 1 else 0.0
    return sum_in(None, 1.0), inside, dist.get_backend(group) if rank.rank != 1 else ""


def test_group_beside_another_backends() -> None:
    assert on_processes(beside_gloo, 3, backend="gloo") == [
        (3, 10, "ring"),
        (3, 0, ""),
        (3, 10, "ring"),
    ]


def merges(rank: Rank) -> tuple[int, list[list[float]]]:
    """Two worlds of two ranks, which become one."""
    world, own = divmod(rank.rank, 2)
    store = PrefixStore(f"world {world}", rank.store)
    dist.init_process_group("ring", store=store, rank=own, world_size=2)
    merged: Any = dist.group.WORLD.merge_remote_group(
        PrefixStore("merged", rank.store), 4, timedelta(seconds=20), "both worlds", "of tests"
    )
    assert merged.size() == 4
    mine = torch.full((3,), 2.0**rank.rank)
    merged.allreduce([mine]).wait()
    gathered = [torch.empty(1) for _ in range(4)]
    merged.allgather([gathered], [torch.tensor([float(merged.rank())])]).wait()
    first = torch.full((1,), float(merged.rank()))
    merged.broadcast([first], c10d.BroadcastOptions()).wait()
    assert sum_in(None, 1.0) == 2  # the old worlds go on
    assert sum_in(merged, 1.0) == 4
    with pytest.raises(ValueError):
        ringcomm.all_reduce(mine, group=merged)
    with pytest.raises(ValueError):
        dist.broadcast(mine, 0, group=merged)
    return merged.rank(), [mine.tolist(), torch.cat(gathered).tolist(), first.tolist()]


def test_two_worlds_become_one() -> None:
    """Ranks of the new group are in the order in which they came."""
    found = on_processes(merges, 4)
    assert sorted(new for new, _ in found) == [0, 1, 2, 3]
    for _, results in found:
        assert results == [[15.0] * 3, [0.0, 1.0, 2.0, 3.0], [0.0]]


def merges_alone(rank: Rank) -> str:
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    group: Any = dist.group.WORLD
    with pytest.raises(dist.DistBackendError) as raised:
        group.merge_remote_group(PrefixStore("merged", rank.store), 4, timedelta(seconds=1), "both")
    assert sum_in(None, 1.0) == 2
    return str(raised.value)


def test_a_world_that_does_not_come_is_named() -> None:
    for text in on_processes(merges_alone, 2):
        assert "Timed out" in text and "ranks 2 and 3" in text


def debug(rank: Rank) -> str:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group(
        "ring", store=PrefixStore("debug", rank.store), rank=rank.rank, world_size=rank.world_size
    )
    assert sum_in(None, 1.0) == rank.world_size
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    gathered = [torch.empty(2) for _ in range(rank.world_size)]
    dist.all_gather(gathered, torch.ones(2))
    try:
        dist.all_reduce(torch.ones(3 + rank.rank))
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_detailed_debugging() -> None:
    for text in on_processes(debug, 2):
        assert "mismatch between collectives" in text


def monitored(rank: Rank) -> None:
    dist.monitored_barrier()
    if rank.rank == 2:
        rank.store.wait(["noted"])
        return
    from datetime import timedelta

    if rank.rank == 0:
        with pytest.raises(RuntimeError, match=r"Rank 2 failed to pass monitoredBarrier in 500 ms"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=500))
        rank.store.set("noted", "1")
    else:
        with pytest.raises(RuntimeError, match="received errors while waiting"):
            dist.monitored_barrier(timeout=timedelta(seconds=20))


@values.torch_2_14
def test_monitored_barrier_names_missing_ranks() -> None:
    on_processes(monitored, 3, backend="ring")


HUGE = (1 << 32) + 4099


def huge(rank: Rank, hosts: list[str]) -> None:
    os.environ["RINGCOMM_HOSTID"] = hosts[rank.rank]
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=2, timeout=timedelta(minutes=2)
    )
    assert len(ringcomm.topology().hosts) == len(set(hosts))
    tensor = torch.zeros(HUGE, dtype=torch.uint8)
    marks = [0, 1, 1 << 31, (1 << 32) - 1, 1 << 32, HUGE - 1]
    for mark in marks:
        tensor[mark] = 1 + rank.rank
    dist.all_reduce(tensor)
    assert [tensor[mark].item() for mark in marks] == [3] * len(marks)
    assert tensor.count_nonzero() == len(marks)
    if rank.rank == 0:
        tensor[HUGE - 2] = 9
    dist.broadcast(tensor, 0)
    assert tensor[HUGE - 2] == 9
    if rank.rank == 0:
        tensor[1 << 32] = 7
        tensor[HUGE - 1] = 8
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
        assert (tensor[1 << 32], tensor[HUGE - 1], tensor[1]) == (7, 8, 3)
        assert tensor.count_nonzero() == len(marks) + 1


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [["a", "a"], ["a", "b"]], ids=["one-host", "two-hosts"])
def test_more_than_4_gib(hosts: list[str], request: pytest.FixtureRequest) -> None:
    if hosts == ["a", "b"] and not request.config.getoption("long"):
        pytest.skip("takes minutes; --long runs it")
    needed = 2 * HUGE + (2 << 30)
    available = psutil.virtual_memory().available
    if available < needed:
        pytest.skip(f"takes {needed >> 30} GiB of memory, {available >> 30} GiB are available")
    on_processes(huge, 2, hosts, timeout=240)
