"""RINGCOMM_DEBUG: what groups print about themselves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from ringcomm.environment import one_of

LEVELS = ("off", "info")


def reporter() -> Callable[[int], None] | None:
    """What rank 0 of a new group is to call with the file of the group's memory; None if nothing.

    Raises:
        ValueError: RINGCOMM_DEBUG holds what it must not.
    """
    return _report if one_of("RINGCOMM_DEBUG", LEVELS, ignore_case=True) == "info" else None


def _report(descriptor: int) -> None:
    """Prints what the group chose, at once, so that other processes' lines come before or after."""
    from ringcomm.live import group_of

    group = group_of(descriptor)
    text = "".join(f"ringcomm: {line}\n" for line in [group.title(), *group.chosen.lines()])
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed: the group is no worse for it
            sys.stderr.write(text)
            sys.stderr.flush()
