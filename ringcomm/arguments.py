"""Types of command-line arguments, for argparse."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ringcomm import _library
from ringcomm.usage import did_you_mean

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def nbytes(text: str) -> int:
    """`text` such as 1024, 1K, 0.5M or 1G as bytes; K is 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:I?B)?", text.strip().upper())
    value = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be bytes such as 8, 1K, 64M, got {text!r}")
    return value


def output_file(text: str) -> Path:
    """A file that can be written, found out before hours of measuring. Nothing is written yet."""
    path = Path(text)
    folder = path.absolute().parent
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        written = path
    except FileNotFoundError:
        is_folder, written = False, folder
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    if is_folder:
        raise argparse.ArgumentTypeError(f"must be a file, and {text!r} is a folder")
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"there is no folder {folder}")
    if not os.access(written, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {written} is read-only here")
    return path


def module(text: str) -> ModuleType:
    """A module by its name or its file (.py), imported, such as one that registers plans.

    A file can import those beside it, as a script can.
    """
    _library.need()
    try:
        return _from_file(Path(text)) if text.endswith(".py") else importlib.import_module(text)
    except (ImportError, OSError) as error:
        raise argparse.ArgumentTypeError(f"cannot be imported: {error}") from None


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader  # of any name that ends in .py
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    sys.path.append(str(path.resolve().parent))
    spec.loader.exec_module(made)
    return made


def number(least: int) -> Callable[[str], int]:
    """A parser of integers from `least` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer from {least}, got {text!r}")
        return int(text)

    return parse


def ranks_per_host(text: str) -> int | list[int]:
    """One number for all hosts, or one for each, such as 3,2,2."""
    sizes = [number(1)(size) for size in text.split(",")]
    return sizes[0] if len(sizes) == 1 else sizes


def several(
    allowed: tuple[str, ...], of_all: tuple[str, ...] | None = None
) -> Callable[[str], list[str]]:
    """A parser of comma-separated names; "all" stands for `of_all`, or else for `allowed`."""

    def parse(text: str) -> list[str]:
        names = list(of_all or allowed) if text == "all" else text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is none of {', '.join(allowed)} and all"
                + did_you_mean(unknown[0], (*allowed, "all"))
            )
        return list(dict.fromkeys(names))

    return parse
