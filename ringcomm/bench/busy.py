"""What other processes take of the processor while something is measured."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

WORTH_SAYING = 0.05  # of the cores' time
LEAST_SECONDS = 0.5  # the kernel's ticks are too coarse for a shorter measurement
_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle and iowait, in the kernel's order
_COUNTED = 8  # guests' time, which follows, is in user and nice, too


def seconds_of(who: int) -> float:
    """The CPU time of this process, or of its children that have ended: see `who` of getrusage."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


class Others:
    """The load by other processes on this process's cores, since this was made.

    Args:
        own: the CPU seconds so far of all that takes part in the measurement.
    """

    def __init__(self, own: Callable[[], float]) -> None:
        self._own_seconds = own
        self._cores = sorted(os.sched_getaffinity(0))
        self._begin = self._now()

    def load(self) -> float:
        """How many cores they have kept busy, on average; 0 if the kernel does not say."""
        begin, busy, own = self._begin
        end, busy_now, own_now = self._now()
        if end - begin < LEAST_SECONDS:
            return 0.0
        return max(0.0, (busy_now - busy) - (own_now - own)) / (end - begin)

    def sentence(self, load: float) -> str:
        """What is to be done about it; "" if that is nothing."""
        if load < WORTH_SAYING * len(self._cores):
            return ""
        return (
            f"other processes kept {load:.1f} of {len(self._cores)} cores busy meanwhile, so that "
            "times are too long: measure again when they have ended"
        )

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), busy_seconds(self._cores), self._own_seconds()


def busy_seconds(cores: list[int]) -> float:
    """The time since the boot in which cores were at work for anyone, other guests included."""
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        name, *fields = line.split()
        if name in names:
            times = list(map(int, fields))[:_COUNTED]
            ticks += sum(times) - sum(times[index] for index in _IDLE if index < len(times))
    return ticks / os.sysconf("SC_CLK_TCK")
