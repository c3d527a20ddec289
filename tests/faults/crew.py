"""Ranks that a test talks to while they run, and that it may kill, stop and let go on.

    def greets(mate: Mate, word: str) -> None:
        mate.say(f"{word} from {mate.rank}")

    with Crew(greets, 3, "hello") as crew:
        assert crew.hear(2) == "hello from 2"
        assert crew.ended() == [0, 0, 0]

Nobody hangs: a rank that says nothing for PATIENCE seconds prints where it is, and the test fails.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ranks  # its fork server has imported torch
import torch
import torch.distributed as dist

from ringcomm.stores import local_store

PATIENCE = 60.0  # seconds, on a busy host
_context = multiprocessing.get_context("forkserver")


@dataclass
class Mate:
    """What a rank's function is called with."""

    rank: int
    world_size: int
    to_parent: Connection

    def say(self, message: Any) -> None:
        self.to_parent.send(message)

    def hear(self) -> Any:
        """The next message of the parent; raises EOFError once the parent has ended."""
        return self.to_parent.recv()


class Failed:
    """Said by a rank whose function raised."""

    def __init__(self, text: str) -> None:
        self.text = text


def _main(function: Callable[..., None], mate: Mate, log: str, arguments: tuple[Any, ...]) -> None:
    with open(log, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    torch.set_num_threads(1)
    try:
        function(mate, *arguments)
    except BaseException:
        mate.say(Failed(traceback.format_exc()))
        raise


class Crew:
    """Runs function(Mate, *arguments) on each of `world_size` processes.

    Args:
        case: what failures are to mention.

    Raises:
        AssertionError: from any method: a rank has failed, ended early, or is silent.
    """

    def __init__(
        self, function: Callable[..., None], world_size: int, *arguments: Any, case: object = ""
    ) -> None:
        self._case = case
        self._directory = tempfile.TemporaryDirectory(prefix="crew-")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            pipe, theirs = _context.Pipe()
            mate = Mate(rank, world_size, theirs)
            process = _context.Process(
                target=_main, args=(function, mate, self._log(rank), arguments), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(pipe)
            self._processes.append(process)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._directory.cleanup()

    def tell(self, rank: int, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has been killed
            self._pipes[rank].send(message)

    def hear(self, rank: int, patience: float = PATIENCE) -> Any:
        pipe = self._pipes[rank]
        if not pipe.poll(patience):
            raise self._failure(rank, f"is silent for {patience} s:\n{self._stack_of(rank)}")
        try:
            said = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._failure(rank, f"has ended:\n{self._tail(rank)}") from None
        if isinstance(said, Failed):
            raise self._failure(rank, f"failed:\n{said.text}\n{self._tail(rank)}")
        return said

    def hear_all(self, of: Iterable[int], patience: float = PATIENCE) -> dict[int, Any]:
        return {rank: self.hear(rank, patience) for rank in of}

    def signal(self, rank: int, number: int) -> float:
        """Sends it; returns the time, as time.monotonic() has it in every process."""
        now = time.monotonic()
        os.kill(self.pid(rank), number)
        return now

    def pid(self, rank: int) -> int:
        pid = self._processes[rank].pid
        assert pid is not None
        return pid

    def ended(self, patience: float = PATIENCE) -> list[int | None]:
        """The exit codes, when all have ended."""
        deadline = time.monotonic() + patience
        for rank, process in enumerate(self._processes):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                raise self._failure(rank, f"does not end:\n{self._stack_of(rank)}")
        return [process.exitcode for process in self._processes]

    def _failure(self, rank: int, what: str) -> AssertionError:
        return AssertionError(f"{self._case}: rank {rank} {what}")

    def _log(self, rank: int) -> str:
        return str(Path(self._directory.name, f"rank{rank}.log"))

    def _tail(self, rank: int) -> str:
        return ranks.tail(Path(self._log(rank)))

    def _stack_of(self, rank: int) -> str:
        self.signal(rank, signal.SIGABRT)  # its faulthandler says where it is
        self._processes[rank].join(ranks.GRACE)
        return self._tail(rank)


@dataclass
class Meeting:
    """Where ranks find each other: a file, or a store that lives in the test's process."""

    path: str = ""
    port: int = 0

    def store(self, world_size: int) -> dist.Store:
        if self.path:
            return dist.FileStore(self.path, world_size)
        return dist.TCPStore("127.0.0.1", self.port, is_master=False)


@contextlib.contextmanager
def meeting(of_file: bool) -> Any:
    """A Meeting, as long as the context lasts."""
    if of_file:
        with tempfile.TemporaryDirectory(prefix="meeting-") as directory:
            yield Meeting(path=str(Path(directory, "store")))
    else:
        server = local_store()
        yield Meeting(port=server.port)
