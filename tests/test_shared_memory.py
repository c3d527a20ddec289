"""Tensors that the other ranks can reach: where they lie, and which collectives copy nothing."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import ringcomm

COUNT = 50_001
WORLD_SIZE = 3


# ---- Where tensors lie


def test_what_is_made_in_the_block_is_shared() -> None:
    before = torch.ones(10)
    with ringcomm.shared_memory():
        made = torch.ones(10)
        model = nn.Linear(7, 5)
        grown = torch.cat([before, before])
        with ringcomm.shared_memory():
            nested = torch.ones(1)
        after_nested = torch.ones(1)
        nothing = torch.empty(0)
    after = torch.ones(10)
    shared = [made, model.weight.data, grown, nested, after_nested, made[3:], made.view(2, 5)]
    assert all(ringcomm.is_shared(tensor) for tensor in shared)
    assert not any(ringcomm.is_shared(tensor) for tensor in [before, after, made + 1, nothing])
    assert torch.equal(made, before) and torch.equal(grown, torch.ones(20))


def test_it_decorates_functions_and_ends_with_an_error() -> None:
    @ringcomm.shared_memory()
    def made() -> torch.Tensor:
        return torch.ones(3)

    assert ringcomm.is_shared(made())
    with pytest.raises(ZeroDivisionError), ringcomm.shared_memory():
        raise ZeroDivisionError
    assert not ringcomm.is_shared(torch.ones(3))


def test_other_threads_make_theirs_as_ever() -> None:
    made: list[torch.Tensor] = []
    with ringcomm.shared_memory():
        thread = threading.Thread(target=lambda: made.append(torch.ones(1000)))
        thread.start()
        thread.join()
    assert not ringcomm.is_shared(made[0])


def test_memory_is_used_again() -> None:
    places = set()
    for _ in range(20):
        tensor = ringcomm.empty(1 << 20)
        places.add(tensor.data_ptr())
        del tensor
    assert len(places) == 1


def test_empty_is_torchs() -> None:
    assert ringcomm.empty(2, 3).shape == (2, 3)
    assert ringcomm.empty((4, 0)).shape == (4, 0)
    tensor = ringcomm.empty(5, dtype=torch.int8, requires_grad=False, device="cpu")
    assert tensor.dtype == torch.int8 and ringcomm.is_shared(tensor)
    assert tensor.data_ptr() % 128 == 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"makes tensors on the CPU, got device=cuda:1"):
        ringcomm.empty(3, device="cuda:1")
    too_much = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with pytest.raises((MemoryError, RuntimeError), match=str(too_much)):
        ringcomm.empty(too_much, dtype=torch.uint8)


def test_a_child_makes_its_own() -> None:
    tensor = ringcomm.empty(1000).fill_(1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = ringcomm.empty(1000).fill_(2)
            del tensor  # the parent's, which must not be given away here
            again = ringcomm.empty(1000).fill_(3)
            code = 0 if ringcomm.is_shared(own) and own[0] == 2 and again[0] == 3 else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(tensor, torch.ones(1000))


# ---- Which collectives copy nothing


def went_without_copy(call: Callable[[], Any]) -> bool:
    """The second time: in the first, ranks learn where the others' memory is."""
    call()
    with torch.profiler.profile() as profiler:
        call()
    return any(event.name == "zero copy" for event in profiler.events())


def each_collective(rank: Rank) -> None:
    n, own = rank.world_size, rank.rank
    everything = torch.arange(n * COUNT, dtype=torch.float32).view(n, COUNT) % 251
    mine = ringcomm.empty(COUNT)
    whole = ringcomm.empty(n * COUNT)
    ordinary = torch.empty(COUNT)
    all_ordinary = torch.empty(n * COUNT)

    def check(result: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.equal(result, expected.reshape(-1))

    def all_reduce() -> None:
        mine.copy_(everything[own])
        ringcomm.all_reduce(mine)
        check(mine, everything.sum(0))

    def reduce() -> None:
        mine.copy_(everything[own])
        ringcomm.reduce(mine, 1)
        check(mine, everything.sum(0) if own == 1 else everything[own])

    def reduce_scatter() -> None:
        whole.view(n, COUNT).copy_(everything + own)
        ringcomm.reduce_scatter_tensor(ordinary, whole)
        check(ordinary, n * everything[own] + sum(range(n)))

    def all_gather() -> None:
        mine.copy_(everything[own])
        ringcomm.all_gather_into_tensor(all_ordinary, mine)
        check(all_ordinary, everything)

    def all_gather_in_place() -> None:
        slot = whole.view(n, COUNT)[own].copy_(everything[own])
        ringcomm.all_gather_into_tensor(whole, slot)
        check(whole, everything)

    def broadcast() -> None:
        tensor = mine if own == 2 else ordinary
        tensor.copy_(everything[own])
        ringcomm.broadcast(tensor, 2)
        check(tensor, everything[2])

    def all_to_all() -> None:
        whole.view(n, COUNT).copy_(everything + own)
        ringcomm.all_to_all_single(all_ordinary, whole)
        check(all_ordinary.view(n, COUNT).sum(0), n * everything[own] + sum(range(n)))

    for call in (
        all_reduce,
        reduce,
        reduce_scatter,
        all_gather,
        all_gather_in_place,
        broadcast,
        all_to_all,
    ):
        assert went_without_copy(call), call.__name__

    def of_ordinary_tensors() -> None:
        ordinary.copy_(everything[own])
        ringcomm.all_reduce(ordinary)
        check(ordinary, everything.sum(0))

    def where_one_rank_has_none() -> None:
        tensor = mine if own != 1 else ordinary
        tensor.copy_(everything[own])
        ringcomm.all_reduce(tensor)
        check(tensor, everything.sum(0))

    assert not went_without_copy(of_ordinary_tensors)
    assert not went_without_copy(where_one_rank_has_none)
    assert went_without_copy(all_reduce)


def test_each_collective() -> None:
    on_processes(each_collective, WORLD_SIZE, backend="ring")


def sums_where_one_rank_reaches_nobody(rank: Rank) -> None:
    root = ringcomm.empty(COUNT) if rank.rank == 0 else torch.empty(COUNT)
    if rank.rank == 1:  # not enough addresses for another rank's memory
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 28), resource.RLIM_INFINITY))

    def broadcast() -> None:
        root.fill_(rank.rank + 7)
        ringcomm.broadcast(root, 0)
        assert torch.equal(root, torch.full((COUNT,), 7.0))

    assert not went_without_copy(broadcast)


def test_no_rank_waits_for_one_that_cannot_map_it() -> None:
    on_processes(sums_where_one_rank_reaches_nobody, 2, backend="ring")


def bfloat16_is_rounded_once(rank: Rank) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank.rank)
    tensor = ringcomm.empty(COUNT, dtype=torch.bfloat16)
    tensor.copy_(torch.randn(COUNT, generator=generator))
    ordinary = tensor.clone()
    first = tensor.clone()
    inputs = [torch.empty_like(ordinary) for _ in range(rank.world_size)]
    ringcomm.all_gather(inputs, ordinary)
    with ringcomm.shared_memory():
        first = tensor.clone()
    ringcomm.all_reduce(first)
    ringcomm.all_reduce(tensor)
    ringcomm.all_reduce(ordinary)
    expected = torch.stack(inputs).float().sum(0).bfloat16()
    assert torch.equal(tensor, expected) and torch.equal(ordinary, expected)
    assert torch.equal(first, expected)
    return tensor


def test_bfloat16_is_rounded_once_and_alike_everywhere() -> None:
    results = on_processes(bfloat16_is_rounded_once, WORLD_SIZE, backend="ring")
    assert all(torch.equal(result, results[0]) for result in results)


# ---- Training


def trains(rank: Rank, shared: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    buckets: list[bool] = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buckets.append(ringcomm.is_shared(bucket.buffer()))
        return allreduce_hook(dist.group.WORLD, bucket)

    hook.__annotations__ = allreduce_hook.__annotations__  # which DDP compares with its own

    def steps() -> nn.Module:
        model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10))
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            inputs = torch.full((8, 200), float(rank.rank + step))
            optimizer.zero_grad()
            parallel(inputs).square().mean().backward()
            optimizer.step()
        return model

    model = ringcomm.shared_memory()(steps)() if shared else steps()
    assert buckets and all(found == shared for found in buckets)
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_ddp_trains_the_same() -> None:
    plain = on_processes(trains, 2, False, backend="ring")
    shared = on_processes(trains, 2, True, backend="ring")
    for expected, found in zip(plain[0] + plain[1], shared[0] + shared[1], strict=True):
        assert torch.equal(expected, found)


def shards(rank: Rank, shared: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)

    def steps() -> list[torch.Tensor]:
        model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10))
        fully_shard(model, mesh=init_device_mesh("cpu", (rank.world_size,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            inputs = torch.full((8, 200), float(rank.rank + step))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        locals = [cast(DTensor, parameter).to_local() for parameter in model.parameters()]
        assert all(ringcomm.is_shared(local) == shared for local in locals)
        return [local.detach().clone() for local in locals]

    return ringcomm.shared_memory()(steps)() if shared else steps()


def test_fsdp_trains_the_same() -> None:
    plain = on_processes(shards, 2, False, backend="ring")
    shared = on_processes(shards, 2, True, backend="ring")
    for expected, found in zip(plain[0] + plain[1], shared[0] + shared[1], strict=True):
        assert torch.equal(expected, found)


def late(rank: Rank) -> str:
    group = ringcomm.new_group([0, 1], timeout=timedelta(seconds=1))
    tensor = ringcomm.empty(COUNT).fill_(1)
    ringcomm.all_reduce(tensor, group=group)
    if rank.rank == 1:
        time.sleep(3)
        return ""
    with pytest.raises(dist.DistBackendError) as raised:
        ringcomm.all_reduce(tensor, group=group)
    return str(raised.value)


def test_who_is_late_is_named() -> None:
    text = on_processes(late, 2, backend="ring")[0]
    assert "rank 1" in text and "all_reduce" in text
