"""Pickles of plain data, read from files that need not be trusted: nothing is carried out."""

from __future__ import annotations

import struct
from typing import Any, TypeVar

_MOST_STACKS, _LONGEST_STACK = 100, 1 << 16  # that are remembered while a file is read
_T = TypeVar("_T")


class DamagedError(ValueError):
    """A file that is no flight record, or not a whole one; the text says why."""


def parsed(content: bytes) -> Any:
    """What a pickle holds: numbers, texts, pairs of texts, lists and dicts.

    It knows what csrc/core/flight_dump.cpp writes, and nothing by which a pickle makes anything
    else.

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
            of_kind(stack[-1], list).extend(items)
        elif opcode == ord("u"):
            items = self._popped()
            of_kind(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif opcode == 0x86:
            second, first = of_kind(stack.pop(), str), of_kind(stack.pop(), str)
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


def of_kind(value: Any, kind: type[_T]) -> _T:
    """The value, if it is of this type and of none that inherits from it.

    Raises:
        DamagedError: it is of another one.
    """
    if type(value) is not kind:
        raise DamagedError(f"it has a {type(value).__name__} in place of a {kind.__name__}")
    return value
