"""Tables of figures, which no terminal may cut."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDEST = 10_000


def print_whole(table: Table) -> None:
    """Prints a table, wider than the terminal if need be: its lines then go on in the next ones."""
    _print(table, Console())


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
