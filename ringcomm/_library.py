"""The import of the library by `python -m ringcomm`, which waits until a command needs it."""

from __future__ import annotations

import functools
import importlib

import ringcomm


@functools.cache
def load() -> ImportError | None:
    """Imports all of ringcomm, if that was not done. Returns why it cannot be used, or None."""
    if hasattr(ringcomm, "all_reduce"):
        return None
    try:
        importlib.reload(ringcomm)
    except ImportError as error:
        return error
    return None


def need() -> None:
    """As `load`, and ends the command if the library cannot be used."""
    if (unusable := load()) is not None:
        raise SystemExit(f"{unusable}\n`python -m ringcomm doctor` says more.")
