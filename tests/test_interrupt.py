"""Ctrl-C ends a command with one line and the exit code 130, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from programs import ROOT
from terminal import Terminal

from ringcomm import forked
from ringcomm.launch import run_ranks, uninterrupted

# Commands that take long, and how many processes each starts.
LONG = {
    "bench -n 100000": 2,
    "demo --nproc 2 --epochs 100000": 2,
    "trace --nproc 2 --iters 1000000": 2,
    "tune reduce --world-sizes 2 -n 100000 -o tuning.json": 2,
    "cost --machine this": max(2, len(os.sched_getaffinity(0))),
    "simulate --world-size 2048,4096 --nbytes 1K..1G --slice 1M": 0,
    "explain --timeline --world-size 8 --slices 8": 0,
}


def _heed_interrupts() -> None:
    """A shell lets what it starts with & ignore SIGINT, which this process may have inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ringcomm", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_imported_torch(pid: int) -> bool:
    return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["group", "parent alone"])
@pytest.mark.parametrize("command", LONG)
def test_a_command_is_interrupted(
    command: str, send: Callable[[int, int], None], tmp_path: Path
) -> None:
    """By a terminal, which sends SIGINT to all, or by a person who sends it to the launcher."""
    with started(command, tmp_path) as process:
        parent = psutil.Process(process.pid)
        wait_until(lambda: len(parent.children()) == LONG[command])
        wait_until(lambda: has_imported_torch(process.pid))
        ranks = parent.children(recursive=True)
        assert process.poll() is None
        send(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert said == "interrupted\n", said
        assert process.returncode == 130
        assert not [rank for rank in ranks if rank.is_running()]


def test_the_cursor_comes_back_when_a_benchmark_is_interrupted() -> None:
    """A rank, which hides it while its progress bar is shown, ends without a word."""
    hide, show = "\x1b[?25l", "\x1b[?25h"
    terminal = Terminal([sys.executable, "-m", "ringcomm", "bench", "-n", "100000"])
    terminal.read_until(lambda said: hide in said)
    terminal.press(b"\x03")
    assert terminal.code() == 130
    assert terminal.said.rindex(show) > terminal.said.rindex(hide)


@pytest.mark.parametrize("is_safe", [True, False], ids=["fork", "new process"])
def test_ranks_are_not_interrupted(is_safe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to all must not print what each of them would say about it."""
    monkeypatch.setattr(forked, "is_safe", lambda: is_safe)
    run_ranks(["-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"], 2, timeout=60)


def test_an_interrupt_waits_for_the_end_of_a_block() -> None:
    done = False
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            done = True
        assert done
        with uninterrupted():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGINT, handler)
