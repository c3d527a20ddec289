"""Named files that jobs may leave in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def left_in_shared_memory() -> set[Path]:
    """This user's. A job that makes one unlinks it as soon as all have opened it."""
    found = set()
    for path in Path("/dev/shm").glob("ringcomm-*"):
        try:
            if path.stat().st_uid == os.geteuid():
                found.add(path)
        except FileNotFoundError:  # it has been unlinked meanwhile
            continue
    return found


def appeared_in_shared_memory(before: set[Path]) -> set[Path]:
    """What is new, stays, and belongs to no process: other jobs may be making a group."""
    appeared = left_in_shared_memory() - before
    if appeared:
        time.sleep(1)
        appeared &= left_in_shared_memory() - open_files()
    return appeared


def open_files() -> set[Path]:
    """Of all processes that may be looked into."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has been closed, or is not ours to see
            found.add(Path(os.readlink(link)))
    return found
