"""Draws what gpu_all_reduce.py has measured: the ring's bus bandwidth over size, and NCCL's.

    python benchmarks/gpu_curves.py all_reduce.csv --plot all_reduce.png

A panel for each number of ranks and dtype, a line for each variant of the ring, and one for NCCL.
The fastest of several measurements counts: NCCL is measured beside each variant. A line with
wrong sums says so. It needs no GPU, only the file.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

from ringcomm.units import readable_nbytes
from ringcomm.usage import Parser

Curve = dict[int, float]  # busbw in GB/s, by nbytes
Panels = dict[tuple[int, str], dict[str, Curve]]


def curves(rows: list[dict[str, str]]) -> Panels:
    """By number of ranks and dtype, and by line.

    Raises:
        KeyError: a column is missing.
        ValueError: a cell that should be a number is none.
    """
    panels: Panels = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        lines = panels[int(row["world_size"]), row["dtype"]]
        name = row["executor"]
        if name == "messages":
            name += f", {row['channels']} channel" + ("s" if row["channels"] != "1" else "")
        if row["ring_wrong"] != "0":
            name += ", WRONG"
        nbytes = int(row["nbytes"])
        nccl = "NCCL, its defaults" if row.get("nccl_ctas") == "default" else "NCCL"
        for line, busbw in ((name, row["ring_busbw"]), (nccl, row["nccl_busbw"])):
            lines[line][nbytes] = max(lines[line].get(nbytes, 0.0), float(busbw))
    return panels


def draw(panels: Panels, path: Path, title: str) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    for axes, (world_size, dtype) in zip(places, panels, strict=False):
        for name, curve in panels[world_size, dtype].items():
            style = (
                {"color": "black", "ls": "--"}
                if name.startswith("NCCL")
                else {"marker": "o", "ms": 4}
            )
            axes.plot(*zip(*sorted(curve.items()), strict=True), **style, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=16))
        axes.xaxis.set_major_formatter(lambda nbytes, _: readable_nbytes(int(nbytes)))
        axes.tick_params(axis="x", labelsize="small")
        axes.set_ylabel("busbw, GB/s")
        axes.set_title(f"{world_size} ranks, {dtype}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=110, metadata={"Title": title})


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="what gpu_all_reduce.py --csv wrote")
    parser.add_argument("--plot", type=Path, required=True, metavar="FILE", help=".png, .svg, .pdf")
    options = parser.parse_args()
    try:
        with options.csv.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise ValueError("it has no rows")
        shown = "; ".join(dict.fromkeys(f"{row['gpu']}, {row['sharing']}" for row in rows))
        draw(curves(rows), options.plot, shown)
    except (OSError, KeyError, ValueError) as error:
        print(f"gpu_curves.py: {options.csv}: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
