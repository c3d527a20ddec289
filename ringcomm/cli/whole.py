"""Tables of figures, which no terminal may cut."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_WIDEST = 10_000


def print_whole(table: Table) -> None:
    """Prints a table, wider than the terminal if need be: its lines then go on in the next ones."""
    console = Console()
    wanted = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    Console(width=max(console.width, wanted)).print(table)
