"""The import of the library by `python -m ringcomm`, which waits until a command needs it."""

from __future__ import annotations

import functools
import importlib

import ringcomm


@functools.cache
def load() -> ImportError | None:
    """Gives the package `ringcomm` its public names. Returns why that is impossible, or None."""
    if hasattr(ringcomm, "all_reduce"):
        return None
    try:
        # These import torch.
        importlib.import_module("ringcomm._build_check").check_build(ringcomm.__path__)
        api = importlib.import_module("ringcomm._api")
    except ImportError as error:
        return error
    vars(ringcomm).update({name: getattr(api, name) for name in api.__all__})
    return None


def need() -> None:
    """Does what `load` does, and ends the command if the library cannot be used."""
    if (unusable := load()) is not None:
        raise SystemExit(f"{unusable}\n`python -m ringcomm doctor` says more.")
