"""What torch asks of a backend beside communication.

Time that is added to a group's timeout, and memory that is given back between calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from flight_records import init
from ranks import Rank, on_processes
from torch._C import _distributed_c10d as c10d

import ringcomm

SHORT = timedelta(seconds=1)
MORE = timedelta(seconds=20)

CPU = torch.device("cpu")
LARGE = 1 << 20  # elements

needs_extensions = pytest.mark.skipif(
    not hasattr(c10d.Backend, "_add_ephemeral_timeout"), reason="torch 2.14 and newer have them"
)

needs_suspend = pytest.mark.skipif(
    not hasattr(c10d.Backend, "suspend"), reason="this torch does not show it to Python"
)


def backend_of(rank: Rank, timeout: timedelta = SHORT) -> Any:
    """Of the default group, which it makes."""
    rank.meet()
    init(rank, timeout)
    return ring()


def ring() -> Any:
    return dist.group.WORLD._get_backend(CPU)


CALLS: dict[str, Callable[[Rank], Any]] = {
    "all_reduce": lambda rank: dist.all_reduce(torch.ones(2)),
    "large": lambda rank: dist.all_reduce(torch.ones(1 << 20)),
    "asynchronous": lambda rank: dist.all_reduce(torch.ones(2), async_op=True).wait(),
    "coalesced": lambda rank: dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)]),
    "barrier": lambda rank: dist.barrier(),
    "monitored_barrier": lambda rank: ring().monitored_barrier(),
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
    """The seconds that works may take: one before, two behind one extension each, two later."""
    backend = backend_of(rank, timedelta(seconds=30))
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
        rank.store.set("posted another", "1")
        works[2].wait()
        receive()
        seconds = [work.timeout.total_seconds() for work in works]
    else:
        rank.store.wait(["posted"])
        dist.send(torch.ones(1), 0, tag=1)
        rank.store.wait(["posted another"])
        dist.send(torch.ones(1), 0, tag=2)
        seconds = []
    return seconds


@needs_extensions
def test_extensions_end_one_by_one() -> None:
    seconds, _ = on_processes(extends_what_is_created_later, 2)
    assert seconds == [30.0, 50.0, 90.0, 70.0, 30.0]


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


def taken() -> int:
    """Bytes of memory that the ranks of the group share, as the system counts them."""
    files = []
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.islink(path) and "memfd:ringcomm-" in os.readlink(path):
            files.append(path)
    (file,) = files
    return 512 * os.stat(file).st_blocks


def results(rank: Rank) -> list[torch.Tensor]:
    """Of calls that use all of the memory: payloads, outboxes and mail boxes."""
    generator = torch.Generator().manual_seed(rank.rank)
    found = []
    for count in (1, 3000, 16_000, LARGE):
        tensor = torch.randn(count, generator=generator)
        dist.all_reduce(tensor)
        gathered = torch.empty(rank.world_size * count)
        dist.all_gather_into_tensor(gathered, torch.randn(count, generator=generator))
        swapped = torch.empty(rank.world_size * count)
        dist.all_to_all_single(swapped, torch.randn(len(swapped), generator=generator))
        found += [tensor, gathered, swapped]
        for peer in range(rank.world_size):
            if peer == rank.rank:
                continue
            received = torch.empty(count)
            sending = dist.isend(torch.randn(count, generator=generator), peer)
            dist.recv(received, peer)
            sending.wait()
            found.append(received)
    return found


def goes_on(rank: Rank) -> dict[str, int]:
    backend = ring()
    expected = results(rank)
    figures = {"before": taken(), "stats before": backend.memory_stats()["shared_memory"]}
    for _ in range(3):
        rank.meet()
        backend.suspend()
        rank.meet()
        figures["suspended"] = taken()
        figures["stats suspended"] = backend.memory_stats()["shared_memory"]
        rank.meet()
        backend.resume()
        if rank.rank == 0:
            time.sleep(0.05)  # the others call first
        assert all(map(torch.equal, results(rank), expected))
        dist.barrier()
        figures["after"] = taken()
        figures["stats after"] = backend.memory_stats()["shared_memory"]
    return figures


@needs_suspend
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_suspended_groups_give_their_memory_back(world_size: int) -> None:
    for figures in on_processes(goes_on, world_size, backend="ring"):
        kept = figures["before"] // 10
        if world_size > 1:
            assert figures["suspended"] < max(kept, 1 << 20) < figures["before"]
            assert figures["stats suspended"] < figures["stats before"] // 2
        assert figures["after"] == figures["before"]
        assert figures["stats after"] == figures["stats before"]


def keeps_messages(rank: Rank) -> None:
    """One that is sent before, and received after."""
    backend = ring()
    if rank.rank == 0:
        dist.send(torch.arange(5000.0), 1)
    backend.suspend()
    backend.resume()
    received = torch.empty(5000)
    if rank.rank == 0:
        dist.send(2 * torch.arange(5000.0), 1)
    else:
        for factor in (1, 2):
            dist.recv(received, 0)
            assert torch.equal(received, factor * torch.arange(5000.0))


@needs_suspend
def test_messages_that_wait_are_kept() -> None:
    on_processes(keeps_messages, 2, backend="ring")


def waits_for_a_message(rank: Rank) -> None:
    backend = ring()
    received = torch.empty(3)
    if rank.rank == 0:
        receiving = dist.irecv(received, 1)
        with pytest.raises(ValueError, match="cannot give back its shared memory: messages"):
            backend.suspend()
    else:
        with pytest.raises(dist.DistBackendError, match=r"rank 0.s arguments were refused: .*mess"):
            backend.suspend()
        dist.send(torch.ones(3), 0)
    if rank.rank == 0:
        receiving.wait()
    dist.all_reduce(received)
    backend.suspend()
    backend.resume()
    dist.barrier()


@needs_suspend
def test_no_memory_is_given_back_while_messages_are_under_way() -> None:
    on_processes(waits_for_a_message, 2, backend="ring")


def calls_in_between(rank: Rank) -> None:
    backend = ring()
    peer = 1 - rank.rank
    dist.all_reduce(torch.ones(3))
    with pytest.raises(RuntimeError, match="ring: resume: this group is not suspended"):
        backend.resume()
    backend.suspend()
    # A barrier of torch's own store: the ranks are to raise by themselves.
    rank.meet()
    if rank.rank == 0:
        suspended = "ring: this group is suspended; resume makes it usable again"
        for call in (
            lambda: dist.all_reduce(torch.ones(3)),
            lambda: dist.all_reduce(torch.ones(3), async_op=True),
            lambda: ringcomm.all_reduce(torch.ones(3)),
            lambda: dist.barrier(),
            lambda: dist.isend(torch.ones(3), peer),
            lambda: backend.monitored_barrier(),
            lambda: backend.suspend(),
        ):
            with pytest.raises(RuntimeError, match=suspended):
                call()
    rank.meet()
    backend.resume()
    if rank.rank == 1:  # raises in place of each collective of rank 0
        for _ in range(5):
            with pytest.raises(dist.DistBackendError, match="this group is suspended"):
                dist.all_reduce(torch.ones(3))
        with pytest.raises(dist.DistBackendError, match="this group is suspended"):
            dist.recv(torch.ones(3), peer)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


@needs_suspend
def test_calls_of_a_suspended_group_raise() -> None:
    on_processes(calls_in_between, 2, backend="ring")


def is_on_another_host(rank: Rank) -> None:
    with pytest.raises(NotImplementedError, match="suspend: the ranks of this group are on sev"):
        ring().suspend()
    dist.barrier()


@needs_suspend
def test_memory_of_several_hosts_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_TEST_RANKS_PER_HOST", "1")
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    on_processes(is_on_another_host, 2, backend="ring")
