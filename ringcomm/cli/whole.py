"""Tables of figures, which no terminal may cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDEST = 10_000
_Column = TypeVar("_Column")


def print_whole(table: Table) -> None:
    """Prints a table, wider than the terminal if need be: its lines then go on in the next ones."""
    _print(table, Console())


def print_in_parts(make: Callable[[Sequence[_Column]], Table], columns: Sequence[_Column]) -> None:
    """Prints a table as several, one below the other, each followed by an empty line.

    A table is wider than the terminal only if one column alone is. A pipe or a file counts as a
    terminal of 80 characters, or of as many as the variable COLUMNS says.

    Args:
        make: makes the table of some of the columns.
        columns: at least one of them is in each table, however narrow the terminal is.
    """
    console = Console()
    parts = [list(columns[:1])]
    for column in columns[1:]:
        if _width(make([*parts[-1], column]), console) <= console.width:
            parts[-1].append(column)
        else:
            parts.append([column])
    for part in parts:
        _print(make(part), console)
        print()


def print_folded(table: Table) -> None:
    """Prints a table whose cells fold between words where the terminal is narrow.

    Words, and columns with `no_wrap`, are never cut. A column's `min_width` keeps together what is
    to stay so.
    """
    console = Console()
    wanted = _width(table, console)
    spare = []
    for column in table.columns:
        cells = [
            Measurement.get(console, console.options.update(max_width=_WIDEST), cell)
            for cell in (column.header, *column.cells)
        ]
        column.width = max(cell.maximum for cell in cells)
        least = max(column.min_width or 0, *(cell.minimum for cell in cells))
        spare.append(0 if column.no_wrap else max(0, column.width - least))
    for _ in range(min(sum(spare), wanted - console.width)):
        widest = spare.index(max(spare))
        spare[widest] -= 1
        width = table.columns[widest].width
        assert width is not None
        table.columns[widest].width = width - 1
    _print(table, console)


def _print(table: Table, console: Console) -> None:
    Console(width=max(console.width, _width(table, console))).print(table)


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
