"""Modules and paths of a module's own, in which a test replaces functions.

    monkeypatch.setattr(status, "time", own(time, sleep=raises))

Threads build beside the tests (`ahead`). They use the standard library, so `time` stays as it is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def own(module: ModuleType, **others: object) -> ModuleType:
    """A copy of the module that has these others."""
    copy = ModuleType(module.__name__)
    vars(copy).update(vars(module) | others)
    return copy


def own_importlib(found: Callable[[str], object]) -> ModuleType:
    """Of one whose `find_spec` finds what this does."""
    return own(importlib, util=own(importlib.util, find_spec=found))


def own_path(**others: object) -> type[Path]:
    """A `Path` that has these others."""
    made: type[Path] = type("Path", (type(Path()),), others)
    return made
