"""Environment variables: a text, a number, a switch or a word; an empty one counts as not set."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from functools import cache

from ringcomm.usage import nearest

# All that this library reads; a test compares them with the code and with the documentation.
NAMES = (
    "RINGCOMM_ACROSS",
    "RINGCOMM_ALGORITHM",
    "RINGCOMM_ASYNC_ERRORS",
    "RINGCOMM_BLOCKING_WAIT",
    "RINGCOMM_CHECK_FINITE",
    "RINGCOMM_DEBUG",
    "RINGCOMM_EXECUTOR",
    "RINGCOMM_FLIGHT_DIGESTS",
    "RINGCOMM_FLIGHT_DUMP",
    "RINGCOMM_FLIGHT_RECORDS",
    "RINGCOMM_FLIGHT_STACKS",
    "RINGCOMM_HOSTID",
    "RINGCOMM_HOST_SILENCE",
    "RINGCOMM_LINKS",
    "RINGCOMM_RANKS_PER_HOST",
    "RINGCOMM_REPRODUCIBLE",
    "RINGCOMM_TUNING",
)
# What builds, benchmarks and tests read, besides RINGCOMM_TEST_...
_OTHERS = (
    "RINGCOMM_BUILDS",
    "RINGCOMM_DAMAGE_SECONDS",
    "RINGCOMM_NCCL",
    "RINGCOMM_REHEARSE",
    "RINGCOMM_TORCH_SOURCES",
    "RINGCOMM_WITH_CUDA",
    "RINGCOMM_WITH_TESTS",
)
_PREFIX = "RINGCOMM_"
_ON, _OFF = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")  # torch's, too
_NEAR = 0.5  # as difflib measures likeness

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


def _cut(name: str) -> str:
    return name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}..."


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


def one_of(name: str, values: Sequence[str], *, ignore_case: bool = False) -> str:
    """What the variable holds, or the first of the values.

    Args:
        name: of the variable.
        values: in lower case.
        ignore_case: for a variable whose likes elsewhere are written in capitals.

    Raises:
        ValueError: it holds something else.
    """
    text = value_of(name, values[0])
    value = text.lower() if ignore_case else text
    if value not in values:
        raise ValueError(f"{name} is {shown(text)}; it must be one of {', '.join(values)}")
    return value


def switch(name: str, default: bool = False) -> bool:
    """Whether the variable is 1 or another of torch's words for it, not 0.

    Raises:
        ValueError: it holds something else.
    """
    text = value_of(name, str(int(default)))
    if text.lower() not in (*_ON, *_OFF):
        raise ValueError(
            f"{name} is {shown(text)}; it must be 0 or 1, or one of torch's words for them "
            "(true, t, yes, y, false, f, no, n)"
        )
    return text.lower() in _ON


def unknown() -> list[str]:
    """A sentence about each variable that is called as this library's own, and that it ignores."""
    return [
        f"{_cut(name)} is set, and ringcomm reads no such variable. {_meant(name)}"
        for name in sorted(os.environ)
        if name.startswith(_PREFIX) and value_of(name) and not _is_known(name)
    ]


@cache  # once in a process
def warn_of_unknown() -> None:
    """Warns of what `unknown` finds."""
    for sentence in unknown():
        warnings.warn(sentence, stacklevel=2)


def _is_known(name: str) -> bool:
    return name in NAMES or name in _OTHERS or name.startswith(f"{_PREFIX}TEST_")


def _meant(name: str) -> str:
    ends = [each.removeprefix(_PREFIX) for each in NAMES]
    end = name.removeprefix(_PREFIX)[:_MOST_SHOWN]
    if near := nearest(end, ends, _NEAR):
        return f"Is {_PREFIX}{near} meant?"
    return f"It reads {', '.join(NAMES)}"
