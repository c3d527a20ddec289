"""torch.distributed's names in ringcomm: the page that lists them, and what the newer ones do."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from documents import page
from ranks import Rank, on_processes

import ringcomm

PAGE = "reference/names.md"
COUNT = 5

# Parameters that the page says are another's, or come with newer versions of torch.
NEWER = {"sort_ranks", "enable_reconfigure", "weights_only", "timeout", "device_id"}


def functions_of_torch() -> set[str]:
    """The public functions of torch.distributed, without its classes, modules and constants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reduce_op warns
        public = {name: getattr(dist, name) for name in dir(dist) if not name.startswith("_")}
    return {
        name
        for name, value in public.items()
        if callable(value)
        and not inspect.isclass(value)
        and getattr(value, "__module__", "").startswith(("torch.distributed", "torch._C._dist"))
        and not isinstance(value, c10d._reduce_op)
    }


def rows(title: str) -> dict[str, str]:
    """Of the section with this title: the names and what is said of each."""
    section = page(PAGE).split(f"\n## {title}\n")[1].split("\n## ")[0]
    return {
        name: said.strip()
        for names, said in re.findall(r"^\| (`.*?`) \|(.*)\|$", section, re.M)
        for name in re.findall(r"`(\w+)`", names)
    }


THERE, LEFT_OUT = rows("There"), rows("Left out")


def since(said: str) -> tuple[int, int]:
    """The version of torch from which on it has the function, by what the page says."""
    found = re.search(r"from torch (\d+)\.(\d+) on", said)
    return (int(found[1]), int(found[2])) if found else (2, 11)


VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])


def test_the_page_has_every_function_of_torch() -> None:
    assert functions_of_torch() - set(THERE) - set(LEFT_OUT) == set()


def test_the_page_has_no_function_that_torch_does_not_have() -> None:
    documented = {**THERE, **LEFT_OUT}
    expected = {name for name, said in documented.items() if since(said) <= VERSION}
    assert expected - functions_of_torch() == set()
    assert set(THERE) & set(LEFT_OUT) == set()


@pytest.mark.parametrize("name", sorted(THERE))
def test_what_the_page_says_is_there_takes_what_torchs_takes(name: str) -> None:
    ours = inspect.signature(getattr(ringcomm, name)).parameters
    assert name in ringcomm.__all__
    if not hasattr(dist, name):
        return  # torch is older
    torchs = inspect.signature(getattr(dist, name)).parameters
    public = [parameter for parameter in torchs if not parameter.startswith("_")]
    assert [parameter for parameter in public if parameter not in ours] == []
    beyond = [parameter for parameter in ours if parameter not in public]
    assert set(beyond) <= NEWER | {"algorithm", "ranks_per_host", "reproducible", "check_finite"}
    same = [parameter for parameter in ours if parameter in public]
    assert same == public  # in their order
    for parameter in same:
        if parameter != "backend":  # which is "ring" here
            assert ours[parameter].default == torchs[parameter].default, parameter


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_the_page_says_is_left_out_is_not_there(name: str) -> None:
    assert not hasattr(ringcomm, name)
    assert LEFT_OUT[name].endswith(".")


def given(rank: int, part: int = 0) -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.float32) + 10 * rank + 100 * part


def waited(returned: Any) -> None:
    """What a call with async_op returns is a Work or a Future."""
    if returned is not None:
        returned.wait()


def all_gather_single(rank: Rank, api: Any, **options: Any) -> Any:
    output = torch.empty(rank.world_size * COUNT)
    function = api.all_gather_single if api is ringcomm else api.all_gather_into_tensor
    waited(function(output, given(rank.rank), **options))
    return output


def reduce_scatter_single(rank: Rank, api: Any, **options: Any) -> Any:
    output = torch.empty(COUNT)
    whole = torch.cat([given(rank.rank, part) for part in range(rank.world_size)])
    function = api.reduce_scatter_single if api is ringcomm else api.reduce_scatter_tensor
    waited(function(output, whole, **options))
    return output


def gather_single(rank: Rank, api: Any, **options: Any) -> Any:
    """torch's gather is the reference: it has no gather_single in old versions."""
    output = torch.zeros(rank.world_size, COUNT)
    is_destination = rank.rank == 1
    if api is ringcomm:
        waited(
            api.gather_single(given(rank.rank), output if is_destination else None, 1, **options)
        )
    else:
        parts = list(output.unbind()) if is_destination else None
        waited(api.gather(given(rank.rank), parts, 1, **options))
    return output


def gather_into_tensor(rank: Rank, api: Any, **options: Any) -> Any:
    output = torch.zeros(rank.world_size * COUNT)
    if api is ringcomm:
        waited(api.gather_into_tensor(given(rank.rank), output, group_dst=0, **options))
    else:
        parts = list(output.chunk(rank.world_size)) if rank.rank == 0 else None
        waited(api.gather(given(rank.rank), parts, 0, **options))
    return output


def all_reduce_coalesced(rank: Rank, api: Any, **options: Any) -> Any:
    tensors = [given(rank.rank), torch.full((2, 3), rank.rank + 1.0)]
    waited(api.all_reduce_coalesced(tensors, dist.ReduceOp.MAX, **options))
    return tensors


def all_gather_coalesced(rank: Rank, api: Any, **options: Any) -> Any:
    """all_gather is the reference: gloo's outputs have another order than torch documents."""
    inputs = [given(rank.rank), torch.full((2, 3), rank.rank + 1.0)]
    outputs = [[torch.empty_like(each) for each in inputs] for _ in range(rank.world_size)]
    if api is ringcomm:
        waited(api.all_gather_coalesced(outputs, inputs, **options))
    else:
        for i, each in enumerate(inputs):
            waited(api.all_gather([output[i] for output in outputs], each, **options))
    return outputs


def object_of(rank: int) -> Any:
    """Such as training passes around, of another number of bytes on each rank."""
    return {"rank": rank, "names": ["a"] * (rank + 1), "numbers": given(rank).tolist()}


def all_gather_object(rank: Rank, api: Any, **options: Any) -> Any:
    objects: list[Any] = [None] * rank.world_size
    api.all_gather_object(objects, object_of(rank.rank), **options)
    return objects


def gather_object(rank: Rank, api: Any, **options: Any) -> Any:
    objects: list[Any] | None = [None] * rank.world_size if rank.rank == 1 else None
    api.gather_object(object_of(rank.rank), objects, 1, **options)
    return objects


def broadcast_object_list(rank: Rank, api: Any, **options: Any) -> Any:
    objects = [object_of(rank.rank), rank.rank, None]
    api.broadcast_object_list(objects, 1, **options)
    return objects


def scatter_object_list(rank: Rank, api: Any, **options: Any) -> Any:
    objects = [object_of(part) for part in range(rank.world_size)] if rank.rank == 0 else None
    output: list[Any] = [None]
    api.scatter_object_list(output, objects, 0, **options)
    return output


def objects_between_two(rank: Rank, api: Any, **options: Any) -> Any:
    objects = [object_of(rank.rank), "text"] if rank.rank == 0 else [None, None]
    if rank.rank == 0:
        api.send_object_list(objects, 1, **options)
        return objects
    return api.recv_object_list(objects, 0, **options), objects


COLLECTIVES: list[Callable[..., Any]] = [
    all_gather_single,
    reduce_scatter_single,
    gather_single,
    gather_into_tensor,
    all_reduce_coalesced,
    all_gather_coalesced,
]
OBJECTS: list[Callable[..., Any]] = [
    all_gather_object,
    gather_object,
    broadcast_object_list,
    scatter_object_list,
    objects_between_two,
]


def newer_calls(rank: Rank) -> None:
    """Each by the direct call, in the default group, and as torch does it among ranks of gloo."""
    gloo = dist.new_group(backend="gloo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the coalesced calls
        for call in COLLECTIVES:
            expected = call(rank, dist, group=gloo)
            for options in ({}, {"async_op": True}):
                got = call(rank, ringcomm, **options)
                torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=call.__name__)
        for call in OBJECTS:
            assert call(rank, ringcomm) == call(rank, dist, group=gloo), call.__name__


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_newer_calls(backend: str) -> None:
    on_processes(newer_calls, 2, backend=backend)


def gathers_what_does_not_fit(rank: Rank) -> None:
    output = torch.empty(rank.world_size * COUNT + 1) if rank.rank == 0 else None
    with pytest.raises((ValueError, dist.DistBackendError), match="elements"):
        ringcomm.gather_single(given(rank.rank), output)
    ringcomm.barrier()


def test_a_tensor_that_what_is_gathered_does_not_fit() -> None:
    on_processes(gathers_what_does_not_fit, 2, backend="ring", timeout=30)


def not_to_be_pickled(rank: Rank) -> str:
    """Rank 1 has what cannot be pickled."""
    mine: Any = (lambda: 0) if rank.rank == 1 else "fine"
    objects: list[Any] = [None] * rank.world_size
    with pytest.raises(Exception) as raised:
        ringcomm.all_gather_object(objects, mine)
    with pytest.raises(Exception, match="pickle"):
        ringcomm.broadcast_object_list([mine], 1)
    with pytest.raises(Exception, match="pickle"):
        if rank.rank == 1:
            ringcomm.send_object_list([mine], 0)
        else:
            ringcomm.recv_object_list([None], 1)
    ringcomm.all_gather_object(objects, rank.rank)
    assert objects == list(range(rank.world_size))
    return str(raised.value)


def test_an_object_that_cannot_be_pickled_is_an_error_on_both_ranks() -> None:
    other, own = on_processes(not_to_be_pickled, 2, backend="ring", timeout=30)
    assert "pickle" in own
    assert "pickle" in other and "all_gather_object" in other and "rank 1" in other


def groups(rank: Rank) -> None:
    assert ringcomm.is_available() and not ringcomm.is_initialized()
    store = dist.PrefixStore("groups", rank.store)
    ringcomm.init_process_group(store=store, rank=rank.rank, world_size=rank.world_size)
    assert ringcomm.is_initialized() and ringcomm.get_backend() == "ring"
    assert ringcomm.get_backend_config() == dist.get_backend_config()

    own, both = ringcomm.new_subgroups(1)
    assert len(both) == rank.world_size and ringcomm.get_process_group_ranks(own) == [rank.rank]
    pair, _ = ringcomm.new_subgroups_by_enumeration([[0, 1]])
    mine = given(rank.rank)
    ringcomm.all_reduce(mine, group=pair)
    assert torch.equal(mine, given(0) + given(1))
    assert ringcomm.get_backend(pair) == "ring"
    assert ringcomm.get_global_rank(pair, 1) == 1 and ringcomm.get_group_rank(pair, 1) == 1
    for group in (own, pair):
        ringcomm.destroy_process_group(group)


def test_groups() -> None:
    on_processes(groups, 2)


def in_the_order_given(rank: Rank) -> None:
    group = ringcomm.new_group([1, 0], sort_ranks=False)
    assert ringcomm.get_process_group_ranks(group) == [1, 0]
    assert group.rank() == 1 - rank.rank
    mine = given(rank.rank)
    ringcomm.broadcast(mine, group_src=0, group=group)
    assert torch.equal(mine, given(1))


@pytest.mark.skipif(VERSION < (2, 14), reason="new_group has sort_ranks from torch 2.14 on")
def test_ranks_in_the_order_given() -> None:
    on_processes(in_the_order_given, 2, backend="ring")


def runs_out_of_time(rank: Rank) -> None:
    """Rank 1 does not come."""
    ringcomm.barrier()
    ringcomm.set_timeout(timedelta(milliseconds=200))
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            ringcomm.all_reduce(given(0))
    rank.meet()


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_a_timeout_that_is_set(backend: str) -> None:
    on_processes(runs_out_of_time, 2, backend=backend, timeout=30)
