"""What jobs are called: their command, and what launched them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringcomm.jobs import Job, job_of

WAITS = "import sys; sys.stdin.read()"


@contextmanager
def running(*command: str) -> Iterator[int]:
    """The process of a command that ends with its input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.001)  # the kernel is still loading the program
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(timeout=60)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(WAITS)
    return str(path)


def test_a_script_and_its_arguments(script: str) -> None:
    with running(sys.executable, "-u", "-W", "ignore", script, "--lr", "0.1") as pid:
        job = job_of([pid])
    assert job == Job("train.py --lr 0.1", os.getpid())
    assert str(job) == f"train.py --lr 0.1 (launcher {os.getpid()})"


def test_a_module(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(script).parent))
    with running(sys.executable, "-m", "train", "x") as pid:
        assert job_of([pid]).command == "-m train x"


def test_arguments_are_cut_and_do_not_act_on_a_terminal(script: str) -> None:
    with running(sys.executable, script, "\x1b[2J", "a" * 100) as pid:
        command = job_of([pid]).command
    assert len(command) == 60
    assert command.startswith("train.py ?[2J aaa") and command.endswith("a...")


def test_a_program_that_is_not_python() -> None:
    with running("/bin/cat", "-", "-") as pid:
        assert job_of([pid]).command == "cat - -"


def test_ranks_have_the_launcher_that_they_share(script: str) -> None:
    """Where each is started by a shell of its own, too."""
    wrapped = ("/bin/sh", "-c", f"'{sys.executable}' '{script}'; true")
    with running(*wrapped) as one, running(*wrapped) as other:
        ranks = [child_of(pid) for pid in (one, other)]
        assert job_of(ranks) == Job("train.py", os.getpid())
        # One alone may have been started by hand, as others from the same shell.
        assert job_of(ranks[:1]) == Job("train.py", ranks[0])


def child_of(pid: int) -> int:
    """The process that it starts, once that is there."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in children.read_text().split():
            if "train.py\0" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        time.sleep(0.01)
    raise AssertionError(f"{pid} starts no process")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_are_called_by_the_script(method: str) -> None:
    queue = multiprocessing.get_context(method).Queue()
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=queue.get) for _ in range(2)]
    for process in processes:
        process.start()
    try:
        job = job_of([process.pid or 0 for process in processes])
        assert job == Job(job_of([os.getpid()]).command, os.getpid())
    finally:
        for _ in processes:
            queue.put(None)  # any of them may take the first
        for process in processes:
            process.join(60)


def test_processes_that_have_ended() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert job_of([process.pid]) == Job("", process.pid)
