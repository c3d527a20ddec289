"""What a measurement says of other processes on its cores."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from own_modules import own

from ringcomm.bench import busy

# In ticks, on each core: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
STAT = """\
cpu  9 9 9 9 9 9 9 9 9 9
cpu0 {0} 10 20 1000 500 1 2 3 40 50
cpu1 {1} 0 0 0 0 0 0 0 0 0
cpu12 77 0 0 0 0 0 0 0 0 0
intr 5
"""


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "stat"
    monkeypatch.setattr(busy, "_STAT", file)
    two_cores = own(os, sysconf=lambda name: 100, sched_getaffinity=lambda pid: {0, 1})
    monkeypatch.setattr(busy, "os", two_cores)
    return file


def test_guests_count_once_and_idle_time_does_not(stat: Path) -> None:
    stat.write_text(STAT.format(100, 8))
    assert busy.busy_seconds([0]) == (100 + 10 + 20 + 1 + 2 + 3) / 100
    assert busy.busy_seconds([0, 1]) == (136 + 8) / 100
    assert busy.busy_seconds([3]) == 0


@pytest.mark.parametrize(("own_seconds", "load"), [(0.0, 1.5), (2.0, 1.0), (9.0, 0.0)])
def test_the_load_is_what_is_not_ones_own(
    stat: Path, monkeypatch: pytest.MonkeyPatch, own_seconds: float, load: float
) -> None:
    """In four seconds the cores work for six."""
    times, used = iter([10.0, 14.0]), iter([1.0, 1.0 + own_seconds])
    monkeypatch.setattr(busy, "time", own(time, monotonic=lambda: next(times)))
    stat.write_text(STAT.format(100, 100))
    others = busy.Others(lambda: next(used))
    stat.write_text(STAT.format(500, 300))
    assert others.load() == pytest.approx(load)


def test_a_little_is_not_worth_a_sentence(stat: Path) -> None:
    stat.write_text(STAT.format(0, 0))
    others = busy.Others(lambda: 0.0)
    assert others.sentence(0.09) == ""
    assert others.sentence(0.8).startswith("other processes kept 0.8 of 2 cores busy")
    assert others.load() == 0  # of a moment


def test_a_kernel_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "_STAT", tmp_path / "none")
    assert busy.busy_seconds([0]) == 0
