"""Does the simulation predict what the ring over shared memory measures on this machine?

    python benchmarks/fit_simulation.py --csv benchmarks/results/fit_simulation.csv

The model has two numbers: a rank spends `overhead` seconds on each transfer and 1 / `bandwidth`
seconds on each byte of it. Over shared memory there is no network: moving bytes and adding them is
all work of the ranks' cores. So where ranks outnumber cores they take turns, and everything lasts
world_size / cores times as long; that factor is given, not fitted. The two numbers are fitted to
the times of some numbers of ranks (least squares of the relative errors), and all others are
predicted by `ringcomm.plan.simulate`.

A sample starts after a barrier and takes as long as the slowest rank. Of all samples the least
counts: what the machine does when it is left alone. The numbers of ranks are measured in turns, so
that on a machine which others use, too, each meets a quiet moment.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import ringcomm
from ringcomm.bench.options import number
from ringcomm.cli.launch import RanksFailedError, run_ranks
from ringcomm.cli.timing import readable_nbytes, readable_seconds
from ringcomm.groups import launched
from ringcomm.plan import Link, Network, simulate

WORLD_SIZES = range(2, 9)
FITTED = (2, 4, 8)  # numbers of ranks; the others are predicted
SIZES = [1 << i for i in range(18, 25)]  # 256 KiB to 16 MiB
FIELDS = ("world_size", "nbytes", "measured_s", "predicted_s", "error")
Key = tuple[int, int]  # world_size, nbytes


def least_seconds(nbytes: int, samples: int) -> float:
    """The least time of one all-reduce of float32. All ranks call it, and get the same."""
    tensor = torch.zeros(nbytes // 4)
    taken = torch.empty(1 + samples, dtype=torch.float64)
    for i in range(len(taken)):
        ringcomm.barrier()
        start = time.perf_counter()
        ringcomm.all_reduce(tensor)
        taken[i] = time.perf_counter() - start
    ringcomm.all_reduce(taken, ringcomm.ReduceOp.MAX)
    return float(taken[1:].min())


def measure(file: Path, samples: int) -> None:
    """As one of the ranks: writes the times of all sizes to `file`."""
    torch.set_num_threads(1)
    ringcomm.init(timedelta(seconds=120))
    times = [least_seconds(nbytes, samples) for nbytes in SIZES]
    if ringcomm.get_rank() == 0:
        file.write_text(json.dumps(times))
    ringcomm.destroy_process_group()


def measured(turns: int, samples: int) -> dict[Key, float]:
    os.environ["RINGCOMM_ALGORITHM"] = "ring"
    least: dict[Key, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        for _ in range(turns):
            for world_size in WORLD_SIZES:
                run_ranks([__file__, "--rank", str(file), "--samples", str(samples)], world_size)
                for nbytes, seconds in zip(SIZES, json.loads(file.read_text()), strict=True):
                    key = world_size, nbytes
                    least[key] = min(seconds, least.get(key, seconds))
    return least


def slowdown(world_size: int, cores: int) -> float:
    """How much longer work takes where ranks outnumber cores."""
    return max(1.0, world_size / cores)


def fit(times: dict[Key, float], cores: int) -> Link:
    """The link whose ring takes the measured times: they are linear in its two numbers."""
    rows, ones = [], []
    for (n, nbytes), seconds in times.items():
        if n in FITTED:
            factor = slowdown(n, cores) / seconds
            rows.append([2 * (n - 1) * factor, 2 * (n - 1) / n * nbytes * factor])
            ones.append(1.0)
    (overhead, seconds_per_byte), *_ = np.linalg.lstsq(np.array(rows), np.array(ones), rcond=None)
    return Link(0.0, 1 / seconds_per_byte, overhead)


def predict(link: Link, world_size: int, nbytes: int, cores: int) -> float:
    factor = slowdown(world_size, cores)
    shared = Link(0.0, link.bandwidth / factor, link.overhead * factor)
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
        f"{link.overhead * 1e6:.2f} µs a transfer, {link.bandwidth / 1e9:.2f} GB/s",
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
    parser = argparse.ArgumentParser(description="fits the simulation to this machine")
    parser.add_argument("--turns", type=number(1), default=3, help="(default: %(default)s)")
    parser.add_argument("--samples", type=number(1), default=50, help="(default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="write measured and predicted seconds here, too")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if launched():
        measure(options.rank, options.samples)
        return 0
    cores = len(os.sched_getaffinity(0))
    try:
        times = measured(options.turns, options.samples)
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
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
