"""The results as nccl-tests' table, as CSV and as JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ringcomm.bench.cases import Case
from ringcomm.bench.options import DTYPES
from ringcomm.bench.sampling import Result

_TYPE_NAMES = {torch_name: name for name, torch_name in DTYPES.items()}


@dataclass(frozen=True)
class Row:
    """One contender in one case and placement. Times in seconds, bandwidths in 1e9 bytes/s."""

    collective: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    world_size: int
    backend: str
    in_place: bool
    time: float
    min: float
    p99: float
    algbw: float
    busbw: float
    ratio: float
    wrong: int


def row_of(case: Case, backend: str, in_place: bool, result: Result) -> Row:
    algbw = case.nbytes / result.median / 1e9
    return Row(
        case.collective.name,
        case.nbytes,
        case.count,
        _TYPE_NAMES[str(case.dtype).removeprefix("torch.")],
        case.op,
        case.root,
        case.world_size,
        backend,
        in_place,
        result.median,
        result.minimum,
        result.p99,
        algbw,
        algbw * case.collective.factor(case.world_size),
        result.ratio,
        result.wrong,
    )


def label(backend: str) -> str:
    """What tables and pictures call it: "ring" alone is an algorithm, too."""
    name, mark, rest = backend.partition(":") if ":" in backend else backend.partition("/")
    return f"dist (ring){mark}{rest}" if name == "ring" else backend


class Table:
    """Lines of text in nccl-tests' columns, with the backend and the ratio to the first one.

    Args:
        backends: all that there are lines of.
        spread: whether to show minimum and p99.
    """

    _BEFORE = ("size", "count", "type", "redop", "root")
    _UNITS = ("(B)", "(elements)", "", "", "")
    _WIDTHS = (11, 11, 8, 6, 4)
    _TIMES = (("time", "(us)", 8), ("min", "(us)", 8), ("p99", "(us)", 8))
    _RATES = (
        ("algbw", "(GB/s)", 7),
        ("busbw", "(GB/s)", 7),
        ("#wrong", "", 6),
        ("ratio", "", 7),
    )

    def __init__(self, backends: Iterable[str], spread: bool) -> None:
        self._backend_width = max(map(len, ["backend", *map(label, backends)]))
        self._spread = spread
        self._columns = (*self._TIMES[: 3 if spread else 1], *self._RATES)

    def heading(self) -> list[str]:
        """Three lines."""
        indent = " " * (sum(self._WIDTHS) + len(self._WIDTHS) + self._backend_width + 2)
        width = sum(width + 1 for _, _, width in self._columns)
        names = [name for name, _, _ in self._columns]
        units = [unit for _, unit, _ in self._columns]
        placements = f"{'out-of-place':^{width}} {'in-place':^{width}}"
        return [
            f"#{indent}{placements}".rstrip(),
            self._line("#", (*self._BEFORE, "backend"), [*names, *names]),
            self._line("#", (*self._UNITS, ""), [*units, *units]),
        ]

    def line(self, out_of_place: Row | None, in_place: Row | None) -> str:
        """At least one of the two is given."""
        row = out_of_place or in_place
        assert row is not None
        before = (row.size, row.count, row.type, row.redop, row.root, label(row.backend))
        return self._line(" ", before, [*self._figures(out_of_place), *self._figures(in_place)])

    def _figures(self, row: Row | None) -> list[str]:
        if row is None:
            return ["N/A"] * len(self._columns)
        times = (row.time, row.min, row.p99)[: 3 if self._spread else 1]
        rates = [f"{row.algbw:.2f}", f"{row.busbw:.2f}", f"{row.wrong}", f"{row.ratio:.2f}"]
        return [*(_microseconds(time) for time in times), *rates]

    def _line(self, first: str, before: Sequence[object], figures: Sequence[str]) -> str:
        cells = [f"{cell:>{width}}" for cell, width in zip(before, self._WIDTHS, strict=False)]
        cells.append(f" {before[-1]:<{self._backend_width}}")
        widths = [width for _, _, width in self._columns]
        cells += [f"{f:>{w}}" for f, w in zip(figures, [*widths, *widths], strict=True)]
        return (first + " ".join(cells)).rstrip()


def _microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.{2 if value < 100 else 1 if value < 10000 else 0}f}"


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def write_json(path: Path, header: Mapping[str, str], rows: Sequence[Row]) -> None:
    document = {"header": dict(header), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n")
