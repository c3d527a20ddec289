"""Flight records, read from files that need not be trusted: nothing in a file is carried out."""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ringcomm.records.pickles import DamagedError, of_kind, parsed
from ringcomm.usage import UsageError

_FILE = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,9})", re.DOTALL)
_MOST_BYTES = 4 << 30  # a million calls with their stacks need less
_MOST_DIMENSIONS = 64  # as torch has it
_COMPLETED = "time_discovered_completed_ns"
_LIBRARY = "nccl:"  # see csrc/core/flight_dump.cpp
_NAMES = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_reduce_barrier": "barrier",
}
# c10's names of dtypes that do not only begin with a capital where torch's do not.
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
# Functions of torch that send Python's objects, by what is pickled and by memory that nothing was
# written to. So equal objects may have other bytes, and another number of them.
_OF_OBJECTS = re.compile(r"(all_gather|gather)_object|(send|recv|broadcast|scatter)_object_list")
_T = TypeVar("_T")

MOST_RECORDS = 1_000_000  # ringcomm.flight has it, too; that needs torch
Key = tuple[str, int]  # of a call: its group and its number


@dataclass(frozen=True, slots=True)
class Frame:
    """Where in a program a call was."""

    name: str
    filename: str
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of a rank.

    Attributes:
        number: among all operations of the process.
        group: torch's name of the group, or of a message's two ranks, such as "0 1->3".
        description: of the group, such as "default_pg"; empty if it has none.
        sequence: the number in the group; 0 for a message whose sender is not known.
        operation: its name.
        inputs: how many elements, and their dtype; nothing for Python's objects.
        outputs: likewise.
        is_message: whether it sends to one rank, or receives from one.
        created: when it was called, in nanoseconds.
        completed: when it had ended with success; None if it had not when the record was written.
        digest: of its result; None if it has none, or if it is made of Python's objects.
        frames: the innermost first.
    """

    number: int
    group: str
    description: str
    sequence: int
    operation: str
    inputs: tuple[int, str]
    outputs: tuple[int, str]
    is_message: bool
    created: int
    completed: int | None
    digest: str | None
    frames: tuple[Frame, ...]

    @property
    def key(self) -> Key:
        """What this call has in common with those of other ranks and other runs."""
        return self.group, self.sequence

    @property
    def kind(self) -> tuple[object, ...]:
        """What is the same in two runs that make the same call."""
        return self.operation, self.inputs, self.outputs


@dataclass(frozen=True)
class Record:
    """What one rank did last.

    Attributes:
        calls: the oldest first.
        has_digests: whether the rank was asked for them.
        members: the ranks of each of its groups, and of the two that send each other messages.
    """

    calls: list[Call]
    has_digests: bool
    members: dict[str, frozenset[int]]

    @property
    def ranks(self) -> frozenset[int]:
        """The members of all its groups."""
        return frozenset().union(*self.members.values())

    @property
    def num_overwritten(self) -> int:
        """How many calls came before the first one that is kept."""
        return self.calls[0].number if self.calls else 0


def read_run(folder: Path) -> dict[int, Record]:
    """The records of a run by rank, from files whose names end in the rank.

    Raises:
        UsageError: there is no such folder, or no records are in it, or those of several runs, or
            one that is damaged.
    """
    return {rank: read(path) for rank, path in sorted(_files(folder).items())}


def _files(folder: Path) -> dict[int, Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None
    found = {name: match for name in names if (match := _FILE.fullmatch(name))}
    found = {name: match for name, match in found.items() if not name.startswith(".")}
    prefixes = sorted({match["prefix"] for match in found.values()})
    if not found:
        raise UsageError(
            f"{folder} holds no flight records, whose names end in a rank. "
            f"TORCH_FR_DUMP_TEMP_FILE={folder}/rank_ writes them there"
        )
    if len(prefixes) > 1:
        raise UsageError(
            f"{folder} holds files of several names, {prefixes[0]!r} and {prefixes[1]!r}, each "
            "followed by a number; a folder must hold the records of one run"
        )
    ranks = {int(match["rank"]): folder / name for name, match in found.items()}
    if len(ranks) < len(found):
        raise UsageError(f"{folder} holds several files of one rank")
    return ranks


def read(path: Path) -> Record:
    """The record of one rank.

    Raises:
        UsageError: the file cannot be read, or is no flight record, or a damaged one.
    """
    try:
        # A pipe would wait here until it is written to.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{path} is no ordinary file")
            if status.st_size > _MOST_BYTES:
                raise UsageError(f"{path} is too large for a flight record")
            content = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _record_of(parsed(content))
    except DamagedError as error:
        raise UsageError(f"{path} is no flight record of ringcomm's, or damaged: {error}") from None


def _get(fields: Any, name: str, kind: type[_T]) -> _T:
    if name not in of_kind(fields, dict):
        raise DamagedError(f"it has no {name}")
    return of_kind(fields[name], kind)


def _record_of(content: Any) -> Record:
    entries = _get(content, "entries", list)
    members = {
        of_kind(name, str): frozenset(map(int, re.findall(r"\d{1,9}", _get(group, "ranks", str))))
        for name, group in _get(content, "pg_config", dict).items()
    }
    frames: dict[int, tuple[Frame, ...]] = {}
    calls = [_call_of(entry, frames) for entry in entries]
    return Record(calls, all("digest" in entry for entry in entries), members)


def _call_of(entry: Any, known: dict[int, tuple[Frame, ...]]) -> Call:
    """`known` has the stacks of the entries before, by the lists that the parser made of them."""
    group, description = _get(entry, "process_group", tuple)
    name = _get(entry, "profiling_name", str).removeprefix(_LIBRARY)
    name = name.partition(" ")[0]  # a message's ranks are in the name of its group
    stack = _get(entry, "frames", list)
    frames = known.get(id(stack))
    if frames is None:
        frames = known[id(stack)] = tuple(map(_frame_of, stack))
    is_of_objects = any(_OF_OBJECTS.fullmatch(frame.name) for frame in frames)
    digest = None if entry.get("digest") is None else _get(entry, "digest", str)
    return Call(
        number=_get(entry, "record_id", int),
        group=group,
        description="" if description == "undefined" else description,
        sequence=_get(entry, "collective_seq_id", int),
        operation=_NAMES.get(name, name),
        inputs=(0, "") if is_of_objects else _tensors_of(entry, "input"),
        outputs=(0, "") if is_of_objects else _tensors_of(entry, "output"),
        is_message=_get(entry, "is_p2p", bool),
        created=_get(entry, "time_created_ns", int),
        completed=_get(entry, _COMPLETED, int) if entry.get(_COMPLETED) is not None else None,
        digest=None if is_of_objects else digest,
        frames=frames,
    )


def _tensors_of(entry: Any, which: str) -> tuple[int, str]:
    shapes = [of_kind(shape, list) for shape in _get(entry, f"{which}_sizes", list)]
    dtypes = _get(entry, f"{which}_dtypes", list)
    if any(len(shape) > _MOST_DIMENSIONS for shape in shapes):
        raise DamagedError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions")
    count = sum(math.prod(of_kind(size, int) for size in shape) for shape in shapes)
    dtype = of_kind(dtypes[0], str) if dtypes else ""
    return count, _DTYPES.get(dtype, dtype.lower())


def _frame_of(frame: Any) -> Frame:
    return Frame(_get(frame, "name", str), _get(frame, "filename", str), _get(frame, "line", int))
