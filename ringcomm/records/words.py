"""The calls of a flight record in words: they fit a terminal, and are safe there."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec

from ringcomm.records import Call, Frame

_WIDTH = 80
_LONGEST = 300  # characters of a name


def operation_of(call: Call) -> str:
    """Such as all_reduce(count=1000, dtype=float32), as in errors."""
    count, dtype = call.outputs if call.outputs[1] else call.inputs
    return shown(f"{call.operation}(count={count}, dtype={dtype})" if dtype else call.operation)


def group_of(call: Call) -> str:
    return shown(f"group {call.group} ({call.description})" if call.description else call.group)


def line_of(call: Call) -> str:
    frame = _own_frame(call.frames)
    if frame is None:
        return "at a line that was not recorded"
    path = frame.filename
    if os.path.isabs(path) and not (relative := os.path.relpath(path)).startswith(os.pardir):
        path = relative
    return shown(f"at {path}:{frame.line} in {frame.name}")


def where_of(call: Call) -> str:
    """The line of the call, or the call where lines are not recorded."""
    return line_of(call) if call.frames else f"in {operation_of(call)}"


def _own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost one of the user's script, or else of a package that is neither torch nor this.

    The record may be of another machine, so what is installed there is known by its path alone.
    """
    callers = [frame for frame in frames if not _is_below(frame.filename, ("torch", "ringcomm"))]
    own = (frame for frame in callers if not _is_installed(frame.filename))
    return next(own, None) or next(iter(callers or frames), None)


def _is_installed(path: str) -> bool:
    return bool(re.search(r"^<frozen |/(site|dist)-packages/|/lib/python3\.\d+/", path))


def _is_below(path: str, packages: Sequence[str]) -> bool:
    folders = [f"-packages/{name}/" for name in packages]
    return any(folder in path for folder in folders) or path.startswith(_folders(packages))


@cache
def _folders(packages: Sequence[str]) -> tuple[str, ...]:
    """Where the packages are here."""
    specs = [spec for name in packages if (spec := find_spec(name))]
    places = [place for spec in specs for place in spec.submodule_search_locations or ()]
    return tuple(os.path.join(place, "") for place in places)


def shown(text: str) -> str:
    """What may have been made to deceive a terminal, or to fill it."""
    text = "".join(each if each.isprintable() else "?" for each in text[: _LONGEST + 1])
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def wrapped(text: str) -> Iterator[str]:
    indent = text[: len(text) - len(text.lstrip())]
    if len(text) <= _WIDTH:
        yield text
        return
    yield from textwrap.wrap(text, _WIDTH, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
