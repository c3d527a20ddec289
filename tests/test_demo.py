"""The demo, as a person starts it, and the launcher under it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringcomm.launch import RanksFailedError, run_ranks
from ringcomm.units import readable_nbytes, readable_seconds

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join([environment.pop("PYTHONPATH", ""), str(ROOT)])
    return subprocess.run(
        [sys.executable, *command],
        text=True,
        capture_output=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": python_path, **environment},
    )


def check_demo(result: subprocess.CompletedProcess[str], world_size: int) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    text = result.stdout
    assert f"{world_size} processes train" in text
    assert "same parameters as from one process" in text
    assert "same parameters as from gloo" in text
    losses = [float(line.split()[3]) for line in text.splitlines() if line.startswith("epoch")]
    assert len(losses) == 3 and losses[2] < losses[0]
    rows = [line.split() for line in text.splitlines() if " µs " in line or " ms " in line]
    assert len(rows) == 4 and rows[0][:2] == ["1", "KiB"]
    assert all(float(row[-1]) < 1e-5 for row in rows), "sums differ from gloo's"


@pytest.mark.slow
def test_demo() -> None:
    result = run("-m", "ringcomm", "demo", "--epochs", "3", "--nproc", "3")
    check_demo(result, 3)
    assert result.stdout.startswith("starting 3 processes")


@pytest.mark.slow
def test_demo_under_torchrun() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    check_demo(run(*torchrun, "-m", "ringcomm", "demo", "--epochs", "3"), 2)


def test_demo_without_scikit_learn(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ModuleNotFoundError('sklearn')\n")
    result = run("-m", "ringcomm", "demo", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "pip install scikit-learn" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("nproc", ["0", "-1", "two"])
def test_demo_refuses(nproc: str) -> None:
    result = run("-m", "ringcomm", "demo", "--nproc", nproc)
    assert result.returncode == 2 and "must be an integer from 1" in result.stderr


SAY_RANK = "import os, sys, time; rank = int(os.environ['RANK']);"


def test_ranks_are_run() -> None:
    run_ranks(["-c", SAY_RANK + "assert os.environ['WORLD_SIZE'] == '3'"], 3, timeout=30)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sys.exit(3 if rank == 1 else time.sleep(600))", "rank 1 failed with exit code 3"),
        ("os.abort() if rank == 2 else time.sleep(600)", "rank 2 failed by signal 6"),
        ("sys.exit(5 if rank == 0 else 0)", "rank 0 failed with exit code 5"),
    ],
)
def test_a_rank_that_fails_ends_the_others(program: str, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(RanksFailedError, match=words):
        run_ranks(["-c", SAY_RANK + program], 3)
    assert time.monotonic() - start < 30


def test_ranks_that_do_not_end_are_killed() -> None:
    with pytest.raises(RanksFailedError, match="rank 1, 2 did not end within 1 s"):
        run_ranks(["-c", SAY_RANK + "rank and time.sleep(600)"], 3, timeout=1)


def test_readable() -> None:
    nbytes = [readable_nbytes(n) for n in (0, 1, 1023, 1024, 38440, 3 << 19, 3 << 20, 5 << 30)]
    assert nbytes == ["0 B", "1 B", "1023 B", "1 KiB", "37.5 KiB", "1536 KiB", "3 MiB", "5120 MiB"]
    assert readable_nbytes((3 << 20) + 300_000) == "3.3 MiB"
    times = [readable_seconds(s) for s in (1.234e-6, 123.4e-6, 12.34e-3, 1.5)]
    assert times == ["1.23 µs", "123 µs", "12.3 ms", "1500 ms"]
