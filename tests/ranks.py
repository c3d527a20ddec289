"""Runs a function as every rank of a group, on processes or on threads, and never hangs.

    def sums_up(rank: Rank, count: int) -> float:
        tensor = torch.full((count,), float(rank.rank))
        dist.all_reduce(tensor)
        return tensor.sum().item()

    def test_sum():
        assert on_processes(sums_up, 4, 10, backend="ring") == [60.0] * 4

`on_processes` and `on_threads` return what each rank returned, in rank order. Unless all succeed,
they raise RanksFailedError with every failing rank's traceback. `outcomes` is for tests in which
ranks are meant to fail or die: it returns what became of each.

Processes come from a fork server that has imported torch and ringcomm once, so a rank starts in
milliseconds. The function and its arguments are pickled, hence the function must stand at the top
level of its module. Threads share the interpreter and take any function, but not
`torch.distributed`'s default group, which is one per process. Processes play several hosts where
`played_hosts` says so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from played_hosts import environment_of
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from ringcomm.stores import local_store

TIMEOUT = 60.0
GRACE = 5.0  # seconds that the others get once a rank has failed
_LOG_TAIL = 8000  # bytes
DIED = f"died with exit code -{signal.SIGKILL:d}"  # Outcome.ended of a rank that was killed

_fork_server = multiprocessing.get_context("forkserver")
# What takes long to import: assert_close needs DTensor, dispatch modes need Dynamo, and modules of
# tests the last two.
_fork_server.set_forkserver_preload(
    ["torch.distributed.tensor", "torch._dynamo", "ringcomm", "pytest", "hypothesis"]
)


@dataclass
class Rank:
    """What a rank's function is called with, before its own arguments."""

    rank: int
    world_size: int
    store: Store

    def meet(self) -> None:
        """Returns when all ranks have called it: before a group that is given little time."""
        arrived = self.store.add("met", 1)
        awaited = -(-arrived // self.world_size) * self.world_size
        while self.store.add("met", 0) < awaited:
            time.sleep(0.001)


@dataclass
class Outcome:
    """What became of a rank: it returned `result`, raised `error`, or ended without either."""

    result: Any = None
    error: BaseException | None = None
    traceback: str = ""
    ended: str = "has not ended"  # or "returned", "raised", "died ..."


class RanksFailedError(AssertionError):
    """Not every rank returned; `outcomes` has what each did."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes
        lines = []
        for rank, outcome in enumerate(outcomes):
            lines.append(f"rank {rank} {outcome.ended}")
            if outcome.ended != "returned" and outcome.traceback:
                lines.append(outcome.traceback)
        super().__init__("\n".join(lines))


def on_processes(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    backend: str | None = None,
    timeout: float = TIMEOUT,
) -> list[Any]:
    """Calls function(Rank, *arguments) on `world_size` processes; returns the results.

    Args:
        backend: if given, the ranks are in a default group of this backend.
        timeout: seconds until ranks that have not ended are killed.

    Raises:
        RanksFailedError: a rank raised, died or took too long.
    """
    return _results(_run(_Process, function, world_size, arguments, backend, timeout, GRACE))


def on_threads(
    function: Callable[..., Any], world_size: int, *arguments: Any, timeout: float = TIMEOUT
) -> list[Any]:
    """Calls function(Rank, *arguments) on `world_size` threads; returns the results.

    Raises:
        RanksFailedError: a rank raised or took too long. Its thread cannot be killed and lives on.
    """
    return _results(_run(_Thread, function, world_size, arguments, None, timeout, GRACE))


def outcomes(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    backend: str | None = None,
    timeout: float = TIMEOUT,
) -> list[Outcome]:
    """As on_processes, but returns what became of each rank, and never raises for it."""
    return _run(_Process, function, world_size, arguments, backend, timeout, timeout)


def _results(outcomes: Sequence[Outcome]) -> list[Any]:
    if any(outcome.ended != "returned" for outcome in outcomes):
        raise RanksFailedError(outcomes)
    return [outcome.result for outcome in outcomes]


@dataclass
class _Task:
    """What a rank is started with. It is sent to the rank's process."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    rank: int
    world_size: int
    backend: str | None
    directory: str
    environment: dict[str, str]

    def call(self, store: Store) -> Outcome:
        try:
            result = self.function(Rank(self.rank, self.world_size, store), *self.arguments)
            return Outcome(result, ended="returned")
        except BaseException as error:
            return Outcome(error=error, traceback=traceback.format_exc(), ended="raised")

    def log(self) -> Path:
        return Path(self.directory, f"rank{self.rank}.log")


class _Running(Protocol):
    """A rank under way."""

    ready: Any  # to wait for, until `outcome` may be called

    def outcome(self) -> Outcome: ...

    def stop(self) -> None:
        """Gives up on a rank that is not ready."""


def _run(
    start: type[_Process | _Thread],
    function: Callable[..., Any],
    world_size: int,
    arguments: tuple[Any, ...],
    backend: str | None,
    timeout: float,
    grace: float,
) -> list[Outcome]:
    deadline = time.monotonic() + timeout
    found: dict[int, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="ranks-") as directory:
        shared = start.make_store()
        tasks = [
            _Task(function, arguments, rank, world_size, backend, directory, environment_of(rank))
            for rank in range(world_size)
        ]
        running: dict[int, _Running] = {
            rank: start(task, shared) for rank, task in enumerate(tasks)
        }
        try:
            while running:
                patience = max(0.0, deadline - time.monotonic())
                ready = multiprocessing.connection.wait(
                    [rank.ready for rank in running.values()], patience
                )
                if not ready:
                    break
                for rank in [rank for rank, it in running.items() if it.ready in ready]:
                    found[rank] = running.pop(rank).outcome()
                    if found[rank].ended != "returned":
                        deadline = min(deadline, time.monotonic() + grace)
        finally:
            for rank in running.values():
                rank.stop()
        for task in tasks:
            missing = found.setdefault(task.rank, Outcome())
            if missing.ended != "returned" and task.log().exists():
                missing.traceback += tail(task.log())
    return [found[rank] for rank in range(world_size)]


def tail(log: Path) -> str:
    """The end of what a rank has printed."""
    return log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")


class _Process:
    @staticmethod
    def make_store() -> Store:
        """Lives in this process, which no test kills. Nor is it a file: who is killed while it
        writes to a FileStore leaves half a record, and torch then waits for the rest without end.
        """
        return local_store()

    def __init__(self, task: _Task, store: Store) -> None:
        assert isinstance(store, TCPStore)
        self.ready, sender = _fork_server.Pipe(duplex=False)
        self.process = _fork_server.Process(
            target=_process_main, args=(task, store.port, sender), daemon=True
        )
        self.process.start()
        sender.close()

    def outcome(self) -> Outcome:
        try:
            result: Outcome | None = pickle.loads(self.ready.recv_bytes())
        except EOFError:
            result = None
        self.process.join(GRACE)
        if self.process.is_alive():
            self.stop()
        return result or Outcome(ended=f"died with exit code {self.process.exitcode}")

    def stop(self) -> None:
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.process.pid, signal.SIGABRT)  # its faulthandler says where it is
        self.process.join(GRACE)
        self.process.kill()
        self.process.join()


def _process_main(
    task: _Task, store_port: int, sender: multiprocessing.connection.Connection
) -> None:
    with open(task.log(), "wb", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    torch.set_num_threads(1)
    os.environ.update(task.environment, GLOO_SOCKET_IFNAME="lo")
    store = TCPStore("127.0.0.1", store_port, is_master=False)
    if task.backend is not None:
        dist.init_process_group(
            task.backend,
            store=PrefixStore("default", store),
            rank=task.rank,
            world_size=task.world_size,
        )
        if task.backend == "gloo":
            dist.barrier()  # a rank that leaves while others still connect is an error to them
    outcome = task.call(store)
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    sender.send_bytes(_pickled(outcome))


def _pickled(outcome: Outcome) -> bytes:
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
        return data
    except Exception:
        # Not everything survives the way to another process; its text does.
        error = outcome.error
        text = f"{type(error).__name__}: {error}" if error else f"returned {outcome.result!r}"
        return pickle.dumps(
            Outcome(None, RuntimeError(text), outcome.traceback or text, ended="raised")
        )


class _Thread:
    @staticmethod
    def make_store() -> Store:
        return HashStore()

    def __init__(self, task: _Task, store: Store) -> None:
        self.ready, sender = multiprocessing.Pipe(duplex=False)
        self.results: list[Outcome] = []

        def main() -> None:
            self.results.append(task.call(store))
            sender.close()

        threading.Thread(target=main, name=f"rank {task.rank}", daemon=True).start()

    def outcome(self) -> Outcome:
        return self.results[0]

    def stop(self) -> None:
        """Threads cannot be stopped."""
