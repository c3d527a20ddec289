"""Programs: what one rank does when a plan is carried out, as a table to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import SupportsIndex, overload

from ringcomm._C.plan import Action, CompiledProgram, Location, LocationKind
from ringcomm.plan.table import ranks

_HEADER = ("step", "action", "chunk", "from", "to", "keeps")


class Program(Sequence[Action]):
    """One rank's part of the plans as its executor carries it out, action by action.

    An action takes a chunk from its peers, or from this rank's own buffer, and does with it in one
    pass over the data whatever is next: so the receive of one step and the send of the next are
    mostly one action. Its name lists what it does, in the words of NCCL's primitives:

    ========  ====================================================================================
    recv      awaits the chunk from peers
    reduce    adds what has come to the own value, in the order of the ranks
    copy      keeps the result: in the output or, where it is none of this rank's, in scratch
    send      writes the result where peers read it
    ========  ====================================================================================

    ``csrc/plan/program.h`` says how it comes about, ``csrc/plan/wiring.h`` why it comes to an end.

    Args:
        compiled: what the compiler of plans has made.
        title: for the table.
    """

    def __init__(self, compiled: CompiledProgram, title: str) -> None:
        self.num_steps = compiled.num_steps
        self.num_slots = compiled.num_slots
        self.num_scratch = compiled.num_scratch
        self._actions = tuple(compiled.actions)
        self._title = title

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Action: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Action, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Action | tuple[Action, ...]:
        return self._actions[index]

    def __len__(self) -> int:
        return len(self._actions)

    def __str__(self) -> str:
        rows = [_HEADER, *map(_row, self._actions)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join((f"{self._title}, {self._needs()}", "", *_lines(rows, widths)))

    def __repr__(self) -> str:
        return str(self)

    def _needs(self) -> str:
        slots = "1 slot" if self.num_slots == 1 else f"{self.num_slots} slots"
        scratch = f", {self.num_scratch} slices of scratch" if self.num_scratch else ""
        return f"{slots} for what is sent{scratch}"


def verb(action: Action) -> str:
    """What an action does: "recv-reduce-copy-send"."""
    parts = [
        ("recv", bool(action.sources)),
        ("reduce", action.reduce),
        ("copy", action.store.kind != LocationKind.NOWHERE),
        ("send", bool(action.readers)),
    ]
    return "-".join(name for name, does in parts if does)


def _row(action: Action) -> tuple[str, ...]:
    step = action.recv_step if action.sources else action.send_step
    return (
        str(step) if step >= 0 else "",
        verb(action),
        str(action.chunk),
        ranks(action.sources) if action.sources else _place(action.own),
        ranks(action.readers) if action.readers else "",
        _place(action.store) + (", complete" if action.finish else ""),
    )


def _place(location: Location) -> str:
    if location.kind == LocationKind.SCRATCH:
        return f"scratch {location.index}"
    return "" if location.kind == LocationKind.NOWHERE else location.kind.name.lower()


def _lines(rows: Sequence[tuple[str, ...]], widths: Sequence[int]) -> Iterator[str]:
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
