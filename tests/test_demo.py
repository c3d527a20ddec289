"""The demo, as a person starts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from programs import python

from ringcomm.units import readable_nbytes, readable_seconds

ROOT = Path(__file__).resolve().parents[1]


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
    result = python("-m", "ringcomm", "demo", "--epochs", "3", "--nproc", "3")
    check_demo(result, 3)
    assert result.stdout.startswith("starting 3 processes")


@pytest.mark.slow
def test_demo_under_torchrun() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    check_demo(python(*torchrun, "-m", "ringcomm", "demo", "--epochs", "3"), 2)


@pytest.mark.parametrize("nproc", ["0", "-1", "two"])
def test_demo_refuses(nproc: str) -> None:
    result = python("-m", "ringcomm", "demo", "--nproc", nproc)
    assert result.returncode == 2 and "must be an integer from 1" in result.stderr


def test_readable() -> None:
    nbytes = [readable_nbytes(n) for n in (0, 1, 1023, 1024, 38440, 3 << 19, 3 << 20, 5 << 30)]
    assert nbytes == ["0 B", "1 B", "1023 B", "1 KiB", "37.5 KiB", "1536 KiB", "3 MiB", "5120 MiB"]
    assert readable_nbytes((3 << 20) + 300_000) == "3.3 MiB"
    times = [readable_seconds(s) for s in (1.234e-6, 123.4e-6, 12.34e-3, 1.5)]
    assert times == ["1.23 µs", "123 µs", "12.3 ms", "1500 ms"]
