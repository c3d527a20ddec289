"""What starts ranks: `ringcomm.launch`, by forks and by new processes, and what forks become."""

from __future__ import annotations

import atexit
import gc
import json
import threading
import time
from pathlib import Path

import pytest
from own_modules import own

from ringcomm import forked, launch
from ringcomm.launch import RanksFailedError, run_ranks

BEGIN = "import os, sys, time; rank = int(os.environ['RANK']);"
# Says of each rank what a program can know of how it was started.
DESCRIBE = """
import json, os, sys
import torch
file = os.environ["SAID"] + os.environ["RANK"]
with open(file, "w") as said:
    json.dump([__name__, sys.argv, sys.path[0], torch.get_num_threads()], said)
"""


@pytest.fixture(params=["fork", "new process"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own process has threads at times, which are no matter to what runs here."""
    monkeypatch.setattr(forked, "is_safe", lambda: request.param == "fork")


either_way = pytest.mark.usefixtures("way")


@either_way
def test_ranks_are_run() -> None:
    run_ranks(["-c", BEGIN + "assert os.environ['WORLD_SIZE'] == '3'"], 3, timeout=30)


@either_way
def test_ranks_meet() -> None:
    program = (
        "import ringcomm, torch; ringcomm.init(); x = torch.ones(5); ringcomm.all_reduce(x); "
        "assert x.tolist() == [3.0] * 5; ringcomm.destroy_process_group()"
    )
    run_ranks(["-c", program], 3, timeout=60)


@either_way
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sys.exit(3 if rank == 1 else time.sleep(600))", "rank 1 failed with exit code 3"),
        ("os.abort() if rank == 2 else time.sleep(600)", "rank 2 failed by signal 6"),
        ("sys.exit(5 if rank == 0 else 0)", "rank 0 failed with exit code 5"),
        ("sys.exit('for a reason' if rank == 0 else 0)", "rank 0 failed with exit code 1"),
        ("1 / rank", "rank 0 failed with exit code 1"),
    ],
)
def test_a_rank_that_fails_ends_the_others(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.5)
    start = time.monotonic()
    with pytest.raises(RanksFailedError, match=words):
        run_ranks(["-c", BEGIN + program], 3)
    assert time.monotonic() - start < 30


@either_way
def test_ranks_that_do_not_end_are_killed() -> None:
    with pytest.raises(RanksFailedError, match="rank 1, 2 did not end within 1 s"):
        run_ranks(["-c", BEGIN + "rank and time.sleep(600)"], 3, timeout=1)


def test_no_rank_sees_that_another_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it says so beside what the launcher says."""

    class Slow(forked.Fork):
        def send_signal(self, number: int) -> None:
            super().send_signal(number)
            time.sleep(0.2)

    monkeypatch.setattr(forked, "Fork", Slow)
    monkeypatch.setattr(forked, "is_safe", lambda: True)
    program = (
        "import pathlib\n"
        f"begun, seen = (pathlib.Path({str(tmp_path)!r}, name) for name in ('begun', 'seen'))\n"
        "if rank == 0: begun.write_text(str(os.getpid())); time.sleep(600)\n"
        "while not begun.exists() or not begun.read_text(): pass\n"
        "stat = pathlib.Path('/proc', begun.read_text(), 'stat')\n"
        "while stat.read_text().rpartition(')')[2].split()[0] not in 'XZ': pass\n"
        "seen.touch()\n"
    )
    with pytest.raises(RanksFailedError, match="rank 0, 1 did not end within 2 s"):
        run_ranks(["-c", BEGIN + "\n" + program], 2, timeout=2)
    assert [file.name for file in tmp_path.iterdir()] == ["begun"]


@either_way
def test_errors_go_where_they_are_to(tmp_path: Path) -> None:
    file = tmp_path / "errors"
    with file.open("wb") as errors, pytest.raises(RanksFailedError):
        run_ranks(["-c", BEGIN + "sys.exit('one reason') if rank else 1 / 0"], 2, stderr=errors)
    # Both write at once, and Python ends a message of sys.exit by a write of its own.
    assert "one reason" in file.read_text()
    assert "ZeroDivisionError: division by zero" in file.read_text()


@either_way
def test_programs_are_started_as_python_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    script = tmp_path / "folder" / "script.py"
    script.write_text(DESCRIBE)
    (tmp_path / "program.py").write_text(DESCRIBE)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def said(*arguments: str) -> list[object]:
        monkeypatch.setenv("SAID", str(tmp_path / arguments[0]))
        run_ranks(arguments, 2, timeout=60)
        first, second = (json.loads((tmp_path / f"{arguments[0]}{i}").read_text()) for i in (0, 1))
        assert first == second
        return list(first)

    argv = ["folder/script.py", "-x", "y"]
    assert said(*argv) == ["__main__", argv, str(script.parent), 1]
    argv = ["-m", "program", "-x"]
    assert said(*argv) == ["__main__", [str(tmp_path / "program.py"), "-x"], str(tmp_path), 1]
    argv = ["-c", DESCRIBE, "x"]
    assert said(*argv) == ["__main__", ["-c", "x"], "", 1]


@either_way
def test_what_is_left_to_the_end_is_done_at_the_end(tmp_path: Path) -> None:
    """It is that of the program, and not of the process that has started it."""
    program = (
        "import atexit, pathlib, threading\n"
        f"file = pathlib.Path({str(tmp_path)!r}, str(rank))\n"
        "atexit.register(lambda: file.write_text(file.read_text() + ' and ended'))\n"
        "threading.Thread(target=lambda: time.sleep(0.3) or file.write_text('waited')).start()\n"
    )
    run_ranks(["-c", BEGIN + "\n" + program], 2, timeout=60)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["waited and ended"] * 2


def test_when_forks_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with monkeypatch.context() as alone:
        alone.setattr(forked, "threading", own(threading, active_count=lambda: 1))
        assert forked.is_safe()
        alone.setattr("torch.cuda.device_count", lambda: 1)
        assert not forked.is_safe()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert not forked.is_safe()
    stop.set()
    thread.join()


def test_what_a_process_has_made_before_it_starts_ranks_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forked, "is_safe", lambda: True)
    run_ranks(["-c", "pass"], 2, timeout=30)
    assert gc.get_freeze_count() == 0


def test_a_fork_has_nothing_of_what_its_parent_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its variables, nor what is to be done when it ends."""
    monkeypatch.setenv("ONLY_OF_THE_PARENT", "1")
    file = tmp_path / "file"
    file.touch()
    atexit.register(file.unlink)
    try:
        program = "import os; assert 'ONLY_OF_THE_PARENT' not in os.environ"
        assert forked.Fork(["-c", program], {}, None).wait() == 0
        assert file.exists()
    finally:
        atexit.unregister(file.unlink)
