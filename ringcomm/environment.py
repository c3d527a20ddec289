"""Environment variables: a text, a number, a switch or a word; an empty one counts as not set."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

MOST_RANKS = (1 << 31) - 1
_MOST_DIGITS = 100  # Python converts no more than 4300
_MOST_SHOWN = 100  # characters


def value_of(name: str, default: str = "") -> str:
    """What the variable holds; the default if it is not set, or empty."""
    return os.environ.get(name) or default


def integer(name: str, default: int, least: int, most: int) -> int:
    """The integer that the variable holds, or its default.

    Raises:
        ValueError: it holds something else, or less or more than that.
    """
    text = value_of(name, str(default))
    if not is_integer(text, least, most):
        raise ValueError(f"{name} is {shown(text)}; it must be an integer from {least} to {most}")
    return int(text)


def is_integer(text: str, least: int, most: int) -> bool:
    """Whether the text is an integer that is not less or more than that."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS and least <= int(text) <= most


def shown(text: str) -> str:
    """The text in quotes, for an error message; a long one is cut."""
    return repr(text) if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]!r}..."


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
        raise ValueError(f"{name} is {shown(text)}; it must be seconds, from {least:g} to {most:g}")
    return value


def one_of(name: str, values: Sequence[str]) -> str:
    """What the variable holds, or the first of the values.

    Raises:
        ValueError: it holds something else.
    """
    text = value_of(name, values[0])
    if text not in values:
        raise ValueError(f"{name} is {shown(text)}; it must be one of {', '.join(values)}")
    return text


def switch(name: str, default: bool = False) -> bool:
    """Whether the variable is 1, not 0.

    Raises:
        ValueError: it holds something else.
    """
    text = value_of(name, str(int(default)))
    if text not in ("0", "1"):
        raise ValueError(f"{name} is {shown(text)}; it must be 0 or 1")
    return text == "1"
