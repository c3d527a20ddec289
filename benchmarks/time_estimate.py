"""Does an estimate of a call's time say what the call takes?

    python -m ringcomm tune --world-sizes 2
    python benchmarks/time_estimate.py -o benchmarks/results/time_estimate

The table has each collective at each size: the time of torch.distributed's call, and the estimate
of `dist._time_estimator`, which reads the file that `tune` wrote. As there, each rank has a core of
its own, the samples are taken in turns, and the least of all counts. The sizes are not those that
`tune` measures.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from common import report, run_on_ranks

from ringcomm.arguments import number
from ringcomm.bench.cases import case_of
from ringcomm.bench.contenders import TorchContender
from ringcomm.bench.tune import IN_PLACE, least_seconds, take_a_core
from ringcomm.groups import launched
from ringcomm.units import readable_nbytes
from ringcomm.usage import Parser

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce")
SIZES = [1280 << 2 * i for i in range(8)]  # 1.25 KiB to 20 MiB, of the larger buffer


@dataclass(frozen=True)
class Row:
    collective: str
    nbytes: int
    measured_us: float
    estimated_us: float
    ratio: float  # of the estimate to what was measured


def rank_main(options: argparse.Namespace) -> None:
    contender = TorchContender("ring", dist, dist.group.WORLD)
    measured: dict[tuple[str, int], float] = {}
    for _ in range(options.turns):
        for key in itertools.product(COLLECTIVES, SIZES):
            seconds = least_seconds(contender, *key, options.samples)
            measured[key] = min(seconds, measured.get(key, seconds))
    rows = [row_of(contender, *key, seconds) for key, seconds in measured.items()]
    if dist.get_rank() == 0:
        within = sum(abs(row.ratio - 1) <= 0.2 for row in rows)
        note = (
            f"Estimate over measured time, {dist.get_world_size()} ranks, float32: "
            f"{within} of {len(rows)} within 20 %."
        )
        report(options.output, Row, rows, note, table(rows) + f"\n{note}\n")


def row_of(contender: TorchContender, collective: str, nbytes: int, seconds: float) -> Row:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    cpu = torch.device("cpu")
    case = case_of(collective, nbytes, torch.float32, "sum", 0, rank, world_size, cpu)
    whole = case.buffer()
    pair = case.input_and_output(whole, whole if collective in IN_PLACE else case.buffer())
    call = contender.prepare(case, *pair)
    with dist._time_estimator() as estimator:
        call()
    estimated = float(estimator.estimated_time)
    return Row(collective, nbytes, seconds * 1e6, estimated, estimated / (seconds * 1e6))


def table(rows: list[Row]) -> str:
    """A line for each size: measured and estimated microseconds, and the ratio."""
    by_case = {(row.collective, row.nbytes): row for row in rows}
    lines = ["| size | " + " | ".join(COLLECTIVES) + " |", "|---:|" + "---:|" * len(COLLECTIVES)]
    for nbytes in SIZES:
        found = [by_case[collective, nbytes] for collective in COLLECTIVES]
        cells = [f"{r.measured_us:.4g} / {r.estimated_us:.4g} = {r.ratio:.2f}" for r in found]
        lines.append(f"| {readable_nbytes(nbytes)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = Parser(description="compares estimated with measured times")
    parser.add_argument("--nproc", type=number(2), default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--samples", type=number(1), default=9, help="(default: %(default)s)")
    parser.add_argument("--turns", type=number(1), default=3, help="(default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, help="write OUTPUT.csv, .json and .md, too")
    options = parser.parse_args()
    if launched():
        take_a_core()
    return run_on_ranks(rank_main, options)


if __name__ == "__main__":
    sys.exit(main())
