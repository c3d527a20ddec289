"""What campaigns count and time, as files beside the benchmarks' results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

Form = TypeVar("Form")

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def about() -> dict[str, Any]:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": str(torch.__version__),
    }


def times(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """How many, their median and the worst."""
    return {
        "number": len(seconds),
        "median_s": round(statistics.median(seconds), 4) if seconds else None,
        "worst_s": round(max(seconds), 4) if seconds else None,
    }


def counted(items: Sequence[str]) -> dict[str, int]:
    return dict(sorted(Counter(items).items()))


class Record:
    """Figures of one campaign. The long form writes them to a file; both print them."""

    def __init__(self, campaign: str, long: bool) -> None:
        self.campaign = campaign
        self.long = long

    def scale(self, short: Form, long: Form) -> Form:
        return long if self.long else short

    def write(self, **figures: Any) -> None:
        print(f"{self.campaign}: {json.dumps(figures)}")
        if self.long:
            self._path().write_text(json.dumps({**about(), **figures}, indent=2) + "\n")

    def write_row(self, row: str, **figures: Any) -> None:
        """Of a campaign that has several, which stay until they are written again."""
        print(f"{self.campaign}, {row}: {json.dumps(figures)}")
        if self.long:
            path = self._path()
            rows = json.loads(path.read_text()) if path.exists() else {}
            rows[row] = {**about(), **figures}
            path.write_text(json.dumps(rows, indent=2) + "\n")

    def _path(self) -> Path:
        return RESULTS / f"faults_{self.campaign}.json"
