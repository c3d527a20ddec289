"""Processes of this host, as /proc shows them."""

from __future__ import annotations

from pathlib import Path


def parent_and_start(process: int) -> tuple[int, int]:
    """The parent of a process, and when it started, in the kernel's ticks since the boot.

    Raises:
        OSError: there is no such process, or /proc does not show it.
    """
    stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    # The name of the process, in parentheses, may be any bytes.
    fields = stat.rpartition(")")[2].split()  # from the third on: state, parent, ...
    return int(fields[1]), int(fields[19])
