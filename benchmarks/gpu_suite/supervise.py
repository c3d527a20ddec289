"""Runs a command that may hang, and ends all of it: children, and what these have started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

# By the mark in it, a process is known as one of a command's, even from a session of its own.
_MARKS = "GPU_SUITE_COMMANDS"
_GRACE = 3.0  # seconds for Python's faulthandler to say where each process is
_POLL = 0.05


def run(
    command: Sequence[str],
    seconds: float | None = None,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Runs the command to its end or for so many seconds, and leaves no process of it behind.

    Args:
        output: where its output and errors go; to this process's if not given.
        environment: is added to this process's.

    Returns:
        The exit code, None if the command had not ended by then. Its processes are then aborted,
        so that Python's faulthandler writes their stacks.
    """
    mark = uuid.uuid4().hex
    marks = f"{os.environ.get(_MARKS, '')} {mark}"
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env={**os.environ, **(environment or {}), _MARKS: marks},
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process, mark)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    if process.poll() is None:
        _kill(mark, signal.SIGABRT)
    patience = time.monotonic() + _GRACE
    while any(_processes(mark)) and time.monotonic() < patience:
        process.poll()
        time.sleep(_POLL)
    while any(_processes(mark)):
        _kill(mark, signal.SIGKILL)
        process.poll()
        time.sleep(_POLL)
    process.wait()


def _processes(mark: str) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                yield int(process.name)
        except OSError:  # another user's, or it has ended
            continue


def _kill(mark: str, number: signal.Signals) -> None:
    for pid in list(_processes(mark)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
