"""Flight records, read from files that need not be trusted: nothing in a file is carried out."""

from __future__ import annotations

import math
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ringcomm.usage import UsageError

_FILE = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,9})", re.DOTALL)
_MOST_BYTES = 4 << 30  # a million calls with their stacks need less
_MOST_DIMENSIONS = 64  # as torch has it
_MOST_STACKS, _LONGEST_STACK = 100, 1 << 16  # that are remembered while a file is read
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


class DamagedError(ValueError):
    """A file that is no flight record, or not a whole one; the text says why."""


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
        is_complete: whether it had ended with success when the record was written.
        created: when it was called, in nanoseconds.
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
    is_complete: bool
    created: int
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
        ranks: the members of all its groups.
    """

    calls: list[Call]
    has_digests: bool
    ranks: frozenset[int]

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
    return {rank: _read(path) for rank, path in sorted(_files(folder).items())}


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


def _read(path: Path) -> Record:
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


def parsed(content: bytes) -> Any:
    """What a pickle holds: numbers, texts, pairs of texts, lists and dicts.

    It knows what csrc/core/pickle.h writes, and nothing by which a pickle makes anything else.

    Raises:
        DamagedError: it holds something else, or ends too early.
    """
    if content[:2] != b"\x80\x02":
        raise DamagedError("it does not begin as one")
    try:
        return _Parser(content).parse()
    except (IndexError, struct.error):
        raise DamagedError("it ends too early") from None
    except (TypeError, ValueError) as error:
        raise DamagedError(str(error)) from None


class _Parser:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._texts: dict[bytes, str] = {}  # most come again and again
        self._stacks = _Stacks(content)

    def parse(self) -> Any:
        content, stack, at = self._content, self._stack, 2
        while (opcode := content[at]) != ord("."):
            at += 1
            if opcode == ord("X"):
                (length,) = struct.unpack_from("<I", content, at)
                stack.append(text := self._text(at + 4, length))
                at += 4 + length
                if text == "frames" and (found := self._stacks.find(at, len(self._marks))):
                    known, at = found
                    stack.append(known)
            elif opcode == 0x8A and content[at] == 8:
                stack.append(struct.unpack_from("<q", content, at + 1)[0])
                at += 9
            elif opcode == ord("G"):
                stack.append(struct.unpack_from(">d", content, at)[0])
                at += 8
            elif not self._carry_out(opcode):
                raise ValueError(f"its byte {at - 1} is {opcode:#04x}")
            elif opcode == ord("e"):
                self._stacks.note_end(at, len(self._marks), stack[-1])
        (result,) = stack
        return result

    def _text(self, at: int, length: int) -> str:
        raw = self._content[at : at + length]
        if raw not in self._texts:
            self._texts[raw] = raw.decode()
        return self._texts[raw]

    def _carry_out(self, opcode: int) -> bool:
        """What has no argument. False: there is no such thing here."""
        stack = self._stack
        if opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode == ord("]"):
            stack.append([])
        elif opcode == ord("}"):
            stack.append({})
        elif opcode == ord("("):
            self._marks.append(len(stack))
        elif opcode == ord("e"):
            items = self._popped()
            _is(stack[-1], list).extend(items)
        elif opcode == ord("u"):
            items = self._popped()
            _is(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif opcode == 0x86:
            second, first = _text(stack.pop()), _text(stack.pop())
            stack.append((first, second))
        else:
            return False
        return True

    def _popped(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items


class _Stacks:
    """The stacks of calls, most of a file, in which a program has few different ones.

    A list that begins with all the bytes of another is that list, as these say where it ends.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._known: dict[bytes, list[Any]] = {}
        self._open: tuple[int, int] | None = None  # where a new one begins, and at which depth

    def find(self, at: int, depth: int) -> tuple[list[Any], int] | None:
        """The one that begins here, and its end; None if it is new, or is no list."""
        if not self._content.startswith(b"](", at):
            return None
        for raw, stack in self._known.items():
            if self._content.startswith(raw, at):
                return stack, at + len(raw)
        self._open = at, depth
        return None

    def note_end(self, at: int, depth: int, ended: list[Any]) -> None:
        """A list has ended here."""
        if self._open is None or self._open[1] != depth:
            return
        raw, self._open = self._content[self._open[0] : at], None
        if len(raw) <= _LONGEST_STACK:
            self._known[raw] = ended
            if len(self._known) > _MOST_STACKS:
                del self._known[next(iter(self._known))]


_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}


def _is(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise DamagedError(f"it has a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _get(fields: Any, name: str, kind: type[_T]) -> _T:
    if name not in _is(fields, dict):
        raise DamagedError(f"it has no {name}")
    return _is(fields[name], kind)


def _record_of(content: Any) -> Record:
    entries = _get(content, "entries", list)
    ranks = {
        int(rank)
        for group in _get(content, "pg_config", dict).values()
        for rank in re.findall(r"\d{1,9}", _get(group, "ranks", str))
    }
    frames: dict[int, tuple[Frame, ...]] = {}
    calls = [_call_of(entry, frames) for entry in entries]
    return Record(calls, all("digest" in entry for entry in entries), frozenset(ranks))


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
        is_complete=_get(entry, "state", str) == "completed",
        created=_get(entry, "time_created_ns", int),
        digest=None if is_of_objects else digest,
        frames=frames,
    )


def _text(value: Any) -> str:
    return _is(value, str)


def _tensors_of(entry: Any, which: str) -> tuple[int, str]:
    shapes = [_is(shape, list) for shape in _get(entry, f"{which}_sizes", list)]
    dtypes = _get(entry, f"{which}_dtypes", list)
    if any(len(shape) > _MOST_DIMENSIONS for shape in shapes):
        raise DamagedError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions")
    count = sum(math.prod(_is(size, int) for size in shape) for shape in shapes)
    dtype = _text(dtypes[0]) if dtypes else ""
    return count, _DTYPES.get(dtype, dtype.lower())


def _frame_of(frame: Any) -> Frame:
    return Frame(_get(frame, "name", str), _get(frame, "filename", str), _get(frame, "line", int))
