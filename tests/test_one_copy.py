"""All-to-alls among processes, whose parts the kernel reads out of them where that is faster."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
import time

import pytest
import torch
import torch.distributed as dist
from ranks import Outcome, Rank, on_processes, outcomes

COUNT = 400_003  # float32 elements for each rank, 1.6 MB
MORE = 1_500_003  # more than is read at once
CALLS = 12  # the first publishes where all tensors are; then both ways are tried


def value(sender: int, receiver: int, call: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32).add_(1000 * sender + 100 * receiver + call)


def exchange(rank: Rank, call: int, count: int = COUNT, memory: torch.Tensor | None = None) -> None:
    n = rank.world_size
    given = torch.cat([value(rank.rank, to, call, count) for to in range(n)], out=memory)
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given)
    for sender, part in enumerate(taken.chunk(n)):
        assert torch.equal(part, value(sender, rank.rank, call, count)), (sender, call)


def calls_by_the_kernel(rank: Rank, count: int, obstacle: str = "") -> int:
    memory = None
    if obstacle == "seccomp":
        refuse_process_vm_readv()
    elif obstacle == "secret memory" and rank.rank == 1:
        memory = secret_memory(rank.world_size * count)
    with torch.profiler.profile() as profiler:
        for call in range(CALLS):
            exchange(rank, call, count, memory if call > 1 else None)
    return sum(event.name == "one copy" for event in profiler.events())


@pytest.mark.parametrize(("world_size", "count"), [(2, COUNT), (3, COUNT), (2, MORE)])
def test_parts_are_read_where_they_are(world_size: int, count: int) -> None:
    counts = on_processes(calls_by_the_kernel, world_size, count, backend="ring")
    assert counts[0] > 0 and len(set(counts)) == 1, counts


def refuse_process_vm_readv() -> None:
    """As seccomp's filters of containers do: EPERM for this thread and those that it starts."""

    def instruction(code: int, value: int, if_equal: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_equal, otherwise, value)

    load, jump_if_equal, give_back = 0x20, 0x15, 0x06
    program = b"".join(
        [
            instruction(load, 0),  # the system call's number
            instruction(jump_if_equal, 310, 0, 1),
            instruction(give_back, 0x00050000 | errno.EPERM),
            instruction(give_back, 0x7FFF0000),
        ]
    )
    instructions = ctypes.create_string_buffer(program)
    filters = struct.pack("HxxxxxxP", 4, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_seccomp, by_filter, ctypes.create_string_buffer(filters)) == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the system call's number is x86-64's")
def test_where_the_kernel_refuses_parts_are_copied_twice() -> None:
    assert on_processes(calls_by_the_kernel, 2, COUNT, "seccomp", backend="ring") == [0, 0]


def secret_memory_file() -> int:
    """-1 where the kernel has none."""
    return ctypes.CDLL(None).syscall(447, 0)  # memfd_secret, on all machines


def secret_memory(count: int) -> torch.Tensor:
    """float32 elements that the kernel reads for no other process, like a device's memory."""
    file = secret_memory_file()
    os.ftruncate(file, 4 * count)
    memory = mmap.mmap(file, 4 * count)
    os.close(file)
    return torch.frombuffer(memory, dtype=torch.float32)


def has_secret_memory() -> bool:
    file = secret_memory_file()
    if file >= 0:
        os.close(file)
    return file >= 0


@pytest.mark.skipif(not has_secret_memory(), reason="this kernel has no memfd_secret")
def test_memory_that_the_kernel_cannot_read_is_copied_twice() -> None:
    """Though the process can be read, as its other memory has shown."""
    assert on_processes(calls_by_the_kernel, 2, COUNT, "secret memory", backend="ring") == [0, 0]


def exchange_until_killed(rank: Rank, seconds: float) -> str:
    for call in range(CALLS):
        exchange(rank, call)
    given = torch.ones(2 * rank.world_size << 20)
    taken = torch.empty_like(given)
    if rank.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError) as raised:
        while True:
            dist.all_to_all_single(taken, given)
    assert time.monotonic() - started < 10
    return str(raised.value)


@pytest.mark.parametrize("seconds", [0.1, 0.123, 0.157])
def test_who_dies_in_the_midst_is_named(seconds: float) -> None:
    found: list[Outcome] = outcomes(exchange_until_killed, 3, seconds, backend="ring")
    assert found[1].ended.startswith("died"), found[1]
    for rank in [0, 2]:
        assert found[rank].ended == "returned", found[rank]
        assert "rank 1" in found[rank].result and "all_to_all" in found[rank].result
