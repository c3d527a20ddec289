"""Environment variables: a text, a number, a switch or a word; an empty one counts as not set."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence


def value_of(name: str, default: str = "") -> str:
    """What the variable holds; the default if it is not set, or empty."""
    return os.environ.get(name) or default


def positive(name: str, default: int) -> int:
    """The positive integer that the variable holds, or its default.

    Raises:
        ValueError: it holds something else.
    """
    text = value_of(name, str(default))
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name} is {text!r}; it must be a positive integer")
    return int(text)


def natural(name: str, default: int) -> int:
    """As `positive`, where 0 is allowed."""
    text = value_of(name, str(default))
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; it must be a positive integer or 0")
    return int(text)


def seconds(name: str, default: float, least: float, most: float) -> float:
    """The number of seconds that the variable holds, or its default.

    Raises:
        ValueError: it holds something else, or less or more than that.
    """
    text = value_of(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"{name} is {text!r}; it must be seconds, from {least:g} to {most:g}")
    return value


def one_of(name: str, values: Sequence[str]) -> str:
    """What the variable holds, or the first of the values.

    Raises:
        ValueError: it holds something else.
    """
    text = value_of(name, values[0])
    if text not in values:
        raise ValueError(f"{name} is {text!r}; it must be one of {', '.join(values)}")
    return text


def switch(name: str, default: bool = False) -> bool:
    """Whether the variable is 1, not 0.

    Raises:
        ValueError: it holds something else.
    """
    text = value_of(name, str(int(default)))
    if text not in ("0", "1"):
        raise ValueError(f"{name} is {text!r}; it must be 0 or 1")
    return text == "1"
