"""Starts the ranks of a command on this host, as torchrun does, and sees to it that they end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Protocol

from ringcomm import forked
from ringcomm.stores import local_store

GRACE = 5.0  # seconds that the other ranks get once one has failed
_POLL = 0.02


class RanksFailedError(RuntimeError):
    """Some ranks failed; the text says which and how."""


def run_ranks(
    arguments: Sequence[str],
    nproc: int,
    *,
    timeout: float | None = None,
    stderr: IO[bytes] | None = None,
) -> None:
    """Runs `python arguments` as `nproc` ranks, with torchrun's environment variables.

    The ranks are forks of this process, which has imported torch, where that is safe. SIGINT is
    blocked in them: a terminal sends it to them, too, and this process then ends them.

    Args:
        arguments: a script, `-m` and a module, or `-c` and a program, with its arguments.
        timeout: seconds until ranks that have not ended are killed; None waits without a limit.
        stderr: where the ranks' errors go; to this process's if not given.

    Raises:
        RanksFailedError: a rank's exit code was not 0, or the time was up. No rank is left running.
        KeyboardInterrupt: SIGINT came. No rank is left running.
    """
    # The ranks find each other in a store that lives here, on a port that the system chooses. It is
    # made when they are there, as it has threads.
    listening = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
    port = listening.getsockname()[1]
    start = forked.Fork if forked.is_safe() else _started
    ranks: list[_Process] = []
    try:
        with uninterrupted():
            for rank in range(nproc):
                ranks.append(start(arguments, _environment(rank, nproc, port), stderr))
            # In here, as an interrupt between its making and this name for it would end it at once.
            store = local_store(listening)
        _wait(ranks, timeout)
        del store  # not before
    finally:
        with uninterrupted():
            # Before their store goes, of which they would complain. All stand still first: one that
            # saw another killed would say so.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in ranks:
                    process.send_signal(number)
            for process in ranks:
                process.wait()
            listening.close()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds SIGINT back until the end of this block. Processes started in it never get one."""
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit it
    if is_main:  # in which Python raises, whichever thread gets the signal
        handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_main:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


class _Process(Protocol):
    def poll(self) -> int | None: ...

    def send_signal(self, number: int) -> None: ...

    def wait(self) -> int | None: ...


def _started(
    arguments: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes] | None
) -> _Process:
    return subprocess.Popen([sys.executable, *arguments], env=environment, stderr=stderr)


def _environment(rank: int, nproc: int, port: int) -> dict[str, str]:
    ours = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": nproc,
        "LOCAL_WORLD_SIZE": nproc,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # no rank is to open the port itself
    }
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        **{name: str(value) for name, value in ours.items()},
    }


def _wait(ranks: Sequence[_Process], timeout: float | None) -> None:
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    failed_first: int | None = None
    while True:
        codes = [rank.poll() for rank in ranks]
        if failed_first is None:
            failed_first = next((i for i, code in enumerate(codes) if code), None)
            if failed_first is not None:
                deadline = min(deadline, time.monotonic() + GRACE)
        if None not in codes or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    if failed_first is not None:
        raise RanksFailedError(f"rank {failed_first} failed {_how(codes[failed_first])}")
    if late := [str(i) for i, code in enumerate(codes) if code is None]:
        raise RanksFailedError(f"rank {', '.join(late)} did not end within {timeout:g} s")


def _how(code: int | None) -> str:
    return f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
