"""Functions of the user's that the library calls, and that raise: all ranks know, and go on."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d as c10d

import ringcomm
from ringcomm import plan

RAISES = 1  # the rank whose function does


def still_the_same_calls(rank: Rank) -> None:
    for step in range(1, 20):
        x = torch.full((3 if step % 2 else 50_000,), float(step))
        dist.all_reduce(x)
        assert x.unique().tolist() == [step * rank.world_size]


def plans_that_raise(rank: Rank) -> list[str]:
    def exchange(r: int, world_size: int) -> plan.Plan:
        if rank.rank == RAISES:
            raise LookupError("no plan today")
        return plan.Plan(
            1, [plan.Step([plan.Transfer(1 - r, 0)], [plan.Transfer(1 - r, 0, reduce=True)])]
        )

    plan.register("all_reduce", "raises", exchange)
    group = ringcomm.new_group(algorithm={"all_reduce": "raises"})
    errors = []
    for _ in range(3):
        try:
            ringcomm.all_reduce(torch.ones(100_000), group=group)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    for step in range(5):
        x = torch.tensor([float(step * (rank.rank == 0))])
        ringcomm.broadcast(x, 0, group=group)
        assert x.item() == step
    return errors


def test_a_plan_that_raises_on_one_rank() -> None:
    errors = on_processes(plans_that_raise, 2, backend="ring")
    assert [len(of_rank) for of_rank in errors] == [3, 3]
    assert all("no plan today" in error for error in errors[RAISES]), errors
    assert all("DistBackendError" in error and "refused" in error for error in errors[0]), errors


def futures_that_raise(rank: Rank) -> None:
    def refuse(_: object) -> None:
        if rank.rank == RAISES:
            raise LookupError("not this one")

    for is_async in (True, False):
        for _ in range(5):
            x = torch.ones(3)
            work = dist.all_reduce(x, async_op=is_async)
            if work is None:
                continue
            chained = work.get_future().then(refuse)
            work.get_future().add_done_callback(refuse)
            work.wait()
            assert x.tolist() == [rank.world_size] * 3
            with contextlib.suppress(Exception):
                chained.wait()
    still_the_same_calls(rank)


def test_callbacks_of_futures_that_raise() -> None:
    on_processes(futures_that_raise, 2, backend="ring")


def completion_hooks_that_raise(rank: Rank) -> None:
    backend = c10d._get_default_group()._get_backend(torch.device("cpu"))

    def refuse(*_: object) -> None:
        raise LookupError("a hook that fails")

    if rank.rank == RAISES:
        backend._register_on_completion_hook(refuse)
    with warnings.catch_warnings(record=True):
        still_the_same_calls(rank)


@pytest.mark.skipif(
    not hasattr(Backend, "options"), reason="torch 2.14 and newer show these to Python"
)
def test_completion_hooks_that_raise() -> None:
    on_processes(completion_hooks_that_raise, 2, backend="ring")


def abort_hooks_that_raise(rank: Rank) -> str:
    backend = c10d._get_default_group()._get_backend(torch.device("cpu"))

    def refuse() -> None:
        raise LookupError("a hook that fails")

    backend.register_abort_hook(-5, refuse)
    if rank.rank == RAISES:
        backend.abort()
        return "aborted"
    try:
        dist.all_reduce(torch.ones(3))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.skipif(
    not hasattr(Backend, "register_abort_hook"), reason="torch 2.14 and newer have them"
)
def test_abort_hooks_that_raise() -> None:
    of_others, of_aborting = on_processes(abort_hooks_that_raise, 2, backend="ring")
    assert of_aborting == "aborted"
    assert "DistBackendError" in of_others and "aborted" in of_others, of_others
