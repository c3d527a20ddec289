"""What torch asks of a backend beside communication: time that is added to a group's timeout."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore

SHORT = timedelta(seconds=1)
MORE = timedelta(seconds=20)

needs_extensions = pytest.mark.skipif(
    not hasattr(c10d.Backend, "_add_ephemeral_timeout"), reason="torch 2.15 and newer have them"
)


def backend_of(rank: Rank, timeout: timedelta = SHORT) -> Any:
    """Of the default group, which it makes."""
    rank.meet()
    dist.init_process_group(
        "ring",
        store=PrefixStore("default", rank.store),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timeout,
    )
    return dist.group.WORLD._get_backend(torch.device("cpu"))


CALLS: dict[str, Callable[[Rank], Any]] = {
    "all_reduce": lambda rank: dist.all_reduce(torch.ones(2)),
    "large": lambda rank: dist.all_reduce(torch.ones(1 << 20)),
    "asynchronous": lambda rank: dist.all_reduce(torch.ones(2), async_op=True).wait(),
    "coalesced": lambda rank: dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)]),
    "barrier": lambda rank: dist.barrier(),
    "monitored_barrier": lambda rank: dist.group.WORLD._get_backend(
        torch.device("cpu")
    ).monitored_barrier(),
    "message": lambda rank: (dist.recv if rank.rank == 0 else dist.send)(
        torch.ones(2), 1 - rank.rank
    ),
}


def waits_for_a_late_peer(rank: Rank, call: str) -> None:
    backend = backend_of(rank)
    CALLS[call](rank)
    if rank.rank == 0:
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(MORE)
    else:
        time.sleep(1.5 * SHORT.total_seconds())
    CALLS[call](rank)

    # The extension has ended with that call.
    rank.meet()
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"its timeout is 1 s\b"):
            dist.all_reduce(torch.ones(2))
        rank.store.set("timed out", "1")
    else:
        rank.store.wait(["timed out"])
    assert backend.options._timeout == SHORT


@needs_extensions
@pytest.mark.parametrize("call", CALLS)
def test_a_timeout_is_extended_once(call: str) -> None:
    on_processes(waits_for_a_late_peer, 2, call)


def extends_what_is_created_later(rank: Rank) -> list[float]:
    """The seconds that works may take, of one before and three behind two extensions."""
    backend = backend_of(rank)
    works = []

    def receive() -> None:
        works.append(dist.irecv(torch.empty(1), 1, tag=len(works)))

    if rank.rank == 0:
        receive()
        backend._add_ephemeral_timeout(MORE)
        receive()
        backend._add_ephemeral_timeout(2 * MORE)
        receive()
        rank.store.set("posted", "1")
        works[1].wait()  # the first extension has ended, the second one has not
        receive()
        works[2].wait()
        receive()
        seconds = [work.timeout.total_seconds() for work in works]
    else:
        rank.store.wait(["posted"])
        for tag in (1, 2):
            dist.send(torch.ones(1), 0, tag=tag)
        seconds = []
    return seconds


@needs_extensions
def test_extensions_end_one_by_one() -> None:
    seconds, _ = on_processes(extends_what_is_created_later, 2)
    assert seconds == [1.0, 21.0, 61.0, 41.0, 1.0]


def adds_to_a_timeout_of_its_own(rank: Rank) -> float:
    backend = backend_of(rank)
    backend._add_ephemeral_timeout(MORE)
    options = c10d.AllreduceOptions()
    options.timeout = timedelta(seconds=3)
    work = backend.allreduce([torch.ones(2)], options)
    work.wait()
    return float(work.timeout.total_seconds())


@needs_extensions
def test_an_extension_adds_to_a_calls_own_timeout() -> None:
    assert on_processes(adds_to_a_timeout_of_its_own, 2) == [23.0, 23.0]


def adds_less_than_nothing(rank: Rank) -> None:
    with pytest.raises(ValueError, match="adds at least 0 ms to a group's timeout, got -5"):
        backend_of(rank)._add_ephemeral_timeout(timedelta(milliseconds=-5))


@needs_extensions
def test_an_extension_is_not_negative() -> None:
    on_processes(adds_less_than_nothing, 1)
