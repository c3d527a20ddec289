"""A plugin of pytest: a row for each test as soon as it has ended, and none is run twice.

The file of running() names the test under way, and the GPU. Where a test ends pytest, it stays.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from gpu_suite import mps

FIELDS = ("test", "outcome", "seconds", "gpu")


def running(rows: Path) -> Path:
    return rows.with_suffix(".running")


def read(rows: Path) -> list[dict[str, str]]:
    if not rows.exists():
        return []
    with rows.open(newline="") as file:
        return list(csv.DictReader(file))


def append(rows: Path, *row: object) -> None:
    new = not rows.exists()
    with rows.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(FIELDS)
        writer.writerow(row)


class Plugin:
    def __init__(self, rows: Path, gpu: str) -> None:
        self._rows = rows
        self._gpu = gpu

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        done = {row["test"] for row in read(self._rows)}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        running(self._rows).write_text(f"{nodeid}\n{self._gpu}\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            append(self._rows, report.nodeid, report.outcome, f"{report.duration:.2f}", self._gpu)

    def pytest_runtest_logfinish(self) -> None:
        running(self._rows).unlink()


def pytest_configure(config: pytest.Config) -> None:
    from gpu_suite import (
        device,  # it imports torch, which takes seconds and reading rows does not need
    )

    gpu = f"{device.label()}, {mps.how()}"
    config.pluginmanager.register(Plugin(Path(os.environ["GPU_SUITE_ROWS"]), gpu))
