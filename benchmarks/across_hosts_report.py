"""What benchmarks/across_hosts.py has measured: rows, a table and a picture for each network."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common import write_results

from ringcomm.bench import plot
from ringcomm.units import readable_seconds

WIRE = "wire"


@dataclass(frozen=True)
class Place:
    """A network, and how many ranks are on each of its hosts."""

    hosts: int
    ranks_per_host: int
    rate: str  # or "unshaped"
    delay_ms: float

    def __str__(self) -> str:
        delay = f", {self.delay_ms:g} ms" if self.delay_ms else ""
        return f"{self.hosts} hosts x {self.ranks_per_host} ranks, {self.rate}{delay}"


@dataclass(frozen=True)
class Row:
    """A contender's times for a size, in seconds."""

    hosts: int
    ranks_per_host: int
    rate: str
    delay_ms: float
    nbytes: int
    contender: str
    median_s: float
    min_s: float
    max_s: float
    rounds: int
    times_wire: float


def row_of(place: Place, size: int, contender: str, times: list[float], floor: float) -> Row:
    median = statistics.median(times)
    return Row(
        **asdict(place),
        nbytes=size,
        contender=contender,
        median_s=median,
        min_s=min(times),
        max_s=max(times),
        rounds=len(times),
        times_wire=median / floor,
    )


def markdown(rows: Sequence[Row]) -> str:
    """A table for each network: a line per size, and times as multiples of the wire's, too."""
    lines = []
    for place, its_rows in by_place(rows).items():
        names = list(dict.fromkeys(row.contender for row in its_rows))
        lines += [f"### {place}", "", f"| bytes | {' | '.join(names)} |"]
        lines.append("|---:" * (len(names) + 1) + "|")
        for size in dict.fromkeys(row.nbytes for row in its_rows):
            found = {row.contender: row for row in its_rows if row.nbytes == size}
            cells = [cell(found[name]) if name in found else "" for name in names]
            lines.append(f"| {plot.readable(size)} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def cell(row: Row) -> str:
    time = " ".join(readable_seconds(row.median_s).split())
    return time if row.contender == WIRE else f"{time} ({row.times_wire:.3g})"


def by_place(rows: Sequence[Row]) -> dict[Place, list[Row]]:
    found: dict[Place, list[Row]] = {}
    for row in rows:
        place = Place(row.hosts, row.ranks_per_host, row.rate, row.delay_ms)
        found.setdefault(place, []).append(row)
    return found


def draw(path: Path, rows: Sequence[Row], title: str) -> None:
    """Time over size, a panel for each network, two in a row; equal delays follow each other."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    places = dict(sorted(by_place(rows).items(), key=lambda item: item[0].delay_ms))
    width = min(2, len(places))
    height = -(-len(places) // width)
    figure = Figure(figsize=(4.2 * width, 2.8 * height), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False).reshape(-1)
    for empty in axes[len(places) :]:
        empty.set_axis_off()
    for one, (place, its_rows) in zip(axes, places.items(), strict=False):
        for name in dict.fromkeys(row.contender for row in its_rows):
            line = [row for row in its_rows if row.contender == name]
            style = {"ls": "--", "color": "gray"} if name == WIRE else {"marker": "o", "ms": 4}
            values = [row.median_s * 1e3 for row in line]
            one.plot([row.nbytes for row in line], values, label=name, **style)
        one.set_xscale("log", base=2)
        one.set_yscale("log")
        one.set_xlabel("size, bytes")
        one.set_ylabel("time, ms")
        one.xaxis.set_major_locator(LogLocator(base=16))
        one.xaxis.set_major_formatter(lambda size, _: plot.readable(int(size)))
        one.grid(alpha=0.3)
        one.set_title(str(place), fontsize="medium")
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3 * width, fontsize="small")
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=110)


def write(output: Path, rows: Sequence[Row], header: dict[str, str]) -> None:
    """OUTPUT.csv, .json, .md and .png."""
    note = "Medians; in brackets, as multiples of what the wire takes."
    write_results(output, Row, rows, header, note, markdown(rows))
    draw(output.with_suffix(".png"), rows, f"all_reduce, float32; {header['machine']}")
