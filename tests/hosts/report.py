"""What a script imports to report to the test that has started it."""

from __future__ import annotations

import json
import os
from typing import Any

DIRECTORY = "RC_REPORTS"  # the variable that names the directory of a job's reports


def report(value: Any, rank: int | None = None) -> None:
    """Adds a value that JSON can hold to the reports of a rank, by default of $RANK."""
    rank = int(os.environ["RANK"]) if rank is None else rank
    path = os.path.join(os.environ[DIRECTORY], f"rank{rank}.json")
    with open(path, "ab", buffering=0) as file:
        file.write(json.dumps(value).encode() + b"\n")
