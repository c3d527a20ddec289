"""A group leaves nothing in its store: neither when it is made and destroyed, nor when it fails."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm
from ringcomm.stores import local_store

GROUPS = 20
MANY_GROUPS = 50


def play_hosts(rank: Rank, ranks_per_host: int, engine: str) -> None:
    os.environ["RINGCOMM_HOSTID"] = f"host{rank.rank // ranks_per_host}"
    os.environ["RINGCOMM_LINKS"] = engine


def keys_after(rank: Rank) -> int:
    """Returns when all ranks have come here, and all groups without a reference have ended."""
    gc.collect()
    rank.store.add("met", 0)
    rank.meet()
    keys: int = rank.store.num_keys()
    rank.meet()
    return keys


def make_and_destroy(groups: int) -> None:
    tensor = torch.ones(10)
    for _ in range(groups):
        group = dist.new_group()
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
        del group


def makes_new_groups(rank: Rank, ranks_per_host: int, engine: str) -> tuple[int, int]:
    play_hosts(rank, ranks_per_host, engine)
    before = keys_after(rank)
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    dist.all_reduce(torch.ones(10))
    made = keys_after(rank) - before
    make_and_destroy(GROUPS)
    dist.destroy_process_group()
    return made, keys_after(rank) - before


@pytest.mark.parametrize(
    ("ranks_per_host", "engine"), [(4, "auto"), (2, "ucx"), (2, "gloo"), (1, "ucx")]
)
def test_groups_leave_no_keys(ranks_per_host: int, engine: str) -> None:
    """While groups of several hosts live, their ranks' addresses stand there."""
    for made, left in on_processes(makes_new_groups, 4, ranks_per_host, engine):
        assert left == 0
        assert made == 0 or ranks_per_host < 4


def again_in_one_store(rank: Rank, ranks_per_host: int) -> int:
    play_hosts(rank, ranks_per_host, "gloo")
    store = dist.PrefixStore("again", rank.store)
    before = keys_after(rank)
    for i in range(GROUPS):
        backend = ringcomm._C.create_backend(
            store,
            rank.rank,
            rank.world_size,
            timedelta(minutes=1),
            [],
            [],
            1,
            1,
            1,
            "",
            [],
            host=os.environ["RINGCOMM_HOSTID"],
        )
        tensor = torch.full((3,), float(i))
        backend.allreduce([tensor]).wait()
        assert tensor.tolist() == [float(i * rank.world_size)] * 3
        del backend
    return keys_after(rank) - before


@pytest.mark.parametrize("ranks_per_host", [3, 2])
def test_groups_of_one_name_in_one_store(ranks_per_host: int) -> None:
    assert on_processes(again_in_one_store, 3, ranks_per_host) == [0, 0, 0]


def is_refused(rank: Rank) -> int:
    before = keys_after(rank)
    if rank.rank == 0:
        os.environ["RINGCOMM_FLIGHT_RECORDS"] = "-1"
    with pytest.raises((ValueError, dist.DistBackendError), match="RINGCOMM_FLIGHT_RECORDS"):
        dist.init_process_group(
            "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size
        )
    return keys_after(rank) - before


def test_a_refused_group_leaves_no_keys() -> None:
    assert on_processes(is_refused, 3) == [0, 0, 0]


# ---- Memory -----------------------------------------------------------------------------------


class HeapInfo(ctypes.Structure):
    """The C library's mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def heap_nbytes() -> int:
    """What this process has allocated by malloc, which Python's own small objects are not."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = HeapInfo
    return int(mallinfo2().uordblks)


def grows(rank: Rank) -> list[float]:
    """How many bytes each new group that has ended leaves on the heap, the store's included."""
    if rank.rank == 0:
        store = local_store()
        rank.store.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(rank.store.get("port")), is_master=False)
    dist.init_process_group("ring", store=store, rank=rank.rank, world_size=rank.world_size)
    nbytes = []
    for _ in range(3):
        make_and_destroy(MANY_GROUPS)
        dist.barrier()
        nbytes.append(heap_nbytes())
    dist.destroy_process_group()
    return [(after - before) / MANY_GROUPS for before, after in itertools.pairwise(nbytes)]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="an old C library")
def test_groups_leave_little_memory() -> None:
    """Some hundred bytes are torch's. Keys that stay in the store are rank 0's memory."""
    found = on_processes(grows, 2)
    assert all(min(growth) < 1000 for growth in found), found
