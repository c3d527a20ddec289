"""Does the simulation predict what the ring over shared memory measures on this machine?

    python benchmarks/fit_simulation.py --csv benchmarks/results/fit_simulation.csv

Over shared memory there is no network. A transfer costs `latency`, in which its receiver waits
until it notices it, and 1 / `bandwidth` seconds per byte, in which a core copies or adds. Where
ranks outnumber cores, a core serves one rank while another waits, so that latency stays what it is,
but the work on bytes takes world_size / cores times as long; this factor is given. The two numbers
are fitted to the times of 2, 4 and 8 ranks (least squares of the relative errors), and
`ringcomm.plan.simulate` predicts the other numbers of ranks.

Sizes are those for which the buffers of all ranks stay in the cache. Beyond it bandwidth is
another: with these numbers, times of 2 MiB on 8 ranks come out a third too low.

A sample starts after a barrier and takes as long as the slowest rank. The least of all samples
counts: it shows the machine when nothing else runs. The numbers of ranks and sizes are measured in
turns, so that on a machine which others use, too, each has a quiet moment.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from common import write_csv
from rich.console import Console
from rich.table import Table
from torch.distributed import ProcessGroup

import ringcomm
from ringcomm.arguments import number
from ringcomm.groups import launched
from ringcomm.launch import RanksFailedError, run_ranks
from ringcomm.plan import Link, Network, simulate
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

WORLD_SIZES = range(2, 9)
SAMPLES = 20  # in each turn
FITTED = (2, 4, 8)  # numbers of ranks; the others are predicted
SIZES = [1 << i for i in range(17, 21)]  # 128 KiB to 1 MiB
FIELDS = ("world_size", "nbytes", "measured_s", "predicted_s", "error")
Key = tuple[int, int]  # world_size, nbytes


def measure(file: Path, turns: int) -> None:
    """As one of the most ranks: writes the times to `file`, as world_size, nbytes and seconds."""
    os.environ["RINGCOMM_ALGORITHM"] = "ring"
    torch.set_num_threads(1)
    ringcomm.init(timedelta(seconds=120))
    groups = {n: ringcomm.new_group(list(range(n))) for n in WORLD_SIZES}
    least = {key: float("inf") for key in itertools.product(WORLD_SIZES, SIZES)}
    for _ in range(turns):
        for world_size, nbytes in least:
            if ringcomm.get_rank() < world_size:
                seconds = least_seconds(nbytes, groups[world_size])
                least[world_size, nbytes] = min(least[world_size, nbytes], seconds)
            ringcomm.barrier()
    if ringcomm.get_rank() == 0:
        file.write_text(json.dumps([(*key, seconds) for key, seconds in least.items()]))
    ringcomm.destroy_process_group()


def least_seconds(nbytes: int, group: ProcessGroup) -> float:
    """The least time of one all-reduce of float32. All ranks of the group get the same."""
    tensor = torch.zeros(nbytes // 4)
    taken = torch.empty(1 + SAMPLES, dtype=torch.float64)
    for i in range(len(taken)):
        ringcomm.barrier(group)
        start = time.perf_counter()
        ringcomm.all_reduce(tensor, group=group)
        taken[i] = time.perf_counter() - start
    ringcomm.all_reduce(taken, ringcomm.ReduceOp.MAX, group)
    return float(taken[1:].min())


def measured(turns: int) -> dict[Key, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        run_ranks([__file__, "--rank", str(file), "--turns", str(turns)], max(WORLD_SIZES))
        return {(n, nbytes): seconds for n, nbytes, seconds in json.loads(file.read_text())}


def slowdown(world_size: int, cores: int) -> float:
    """How much longer work takes where ranks outnumber cores."""
    return max(1.0, world_size / cores)


def fit(times: dict[Key, float], cores: int) -> Link:
    """The link that predicts the measured times best: they are linear in its two numbers."""
    rows = [
        [2 * (n - 1) / seconds, 2 * (n - 1) / n * nbytes * slowdown(n, cores) / seconds]
        for (n, nbytes), seconds in times.items()
        if n in FITTED
    ]
    (latency, seconds_per_byte), *_ = np.linalg.lstsq(
        np.array(rows), np.ones(len(rows)), rcond=None
    )
    return Link(latency, 1 / seconds_per_byte)


def predict(link: Link, world_size: int, nbytes: int, cores: int) -> float:
    shared = Link(link.latency, link.bandwidth / slowdown(world_size, cores))
    return simulate(
        "all_reduce", "ring", world_size=world_size, nbytes=nbytes, network=Network(shared)
    ).seconds


def table(rows: list[dict[str, float]], link: Link, cores: int) -> Table:
    result = Table(
        "ranks",
        "nbytes",
        "measured",
        "predicted",
        "error",
        title=f"ring all-reduce over shared memory, {cores} cores\nfitted to {FITTED} ranks: "
        f"{link.latency * 1e6:.1f} µs a transfer, {link.bandwidth / 1e9:.2f} GB/s",
        box=None,
    )
    for column in result.columns:
        column.justify = "right"
    for row in rows:
        result.add_row(
            str(row["world_size"]),
            readable_nbytes(int(row["nbytes"])),
            readable_seconds(row["measured_s"]),
            readable_seconds(row["predicted_s"]),
            f"{row['error']:+.0%}",
        )
    return result


def main() -> int:
    parser = Parser(description="fits the simulation to this machine")
    parser.add_argument("--turns", type=number(1), default=50, help="(default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="write measured and predicted seconds here, too")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if launched():
        measure(options.rank, options.turns)
        return 0
    cores = len(os.sched_getaffinity(0))
    try:
        times = measured(options.turns)
    except RanksFailedError as error:
        print(error, file=sys.stderr)
        return 1
    link = fit(times, cores)
    rows = []
    for (world_size, nbytes), seconds in sorted(times.items()):
        predicted = predict(link, world_size, nbytes, cores)
        values = (world_size, nbytes, seconds, predicted, predicted / seconds - 1)
        rows.append(dict(zip(FIELDS, values, strict=True)))
    console = Console()
    console.print(table(rows, link, cores))
    for name, chosen in (
        ("fitted", [row for row in rows if row["world_size"] in FITTED]),
        ("predicted", [row for row in rows if row["world_size"] not in FITTED]),
    ):
        errors = [abs(row["error"]) for row in chosen]
        within = sum(error <= 0.25 for error in errors)
        console.print(
            f"{name}: {within} of {len(errors)} within 25 %, largest error {max(errors):.0%}"
        )
    if options.csv:
        write_csv(options.csv, FIELDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
