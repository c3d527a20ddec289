"""How surely `ringcomm.stragglers` names a link between hosts that is slow, and none where none is.

    python benchmarks/slow_links.py --runs 100

A run is 20 steps of 50 ms, in which the ranks sleep, each with an all-reduce. The hosts are
namespaces of this machine (tests/hosts/) with a rank each, joined at one rate; this needs root. The
last host sends at a lower rate, or none does. With the sizes that are usual, a step was then 3 to
4 % longer, and 36 to 45 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from common import listed, report

import ringcomm
from ringcomm.arguments import nbytes, number, several
from ringcomm.units import readable_nbytes
from ringcomm.usage import Parser

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hosts import Network, missing
from hosts.report import report as say

STEP = 0.05  # seconds
ENGINES = ("gloo", "ucx")


@dataclass(frozen=True)
class Row:
    """Runs of one kind.

    Attributes:
        engine: what carries bytes between hosts.
        is_slow: whether the last host sends at the lower rate.
        named: in how many runs the link from that host was named, and nothing else.
        none: in how many nothing was named.
        others: in how many something else was.
        step: seconds of a step, the median of the runs.
    """

    engine: str
    hosts: int
    nbytes: int
    is_slow: bool
    runs: int
    named: int
    none: int
    others: int
    step: float


def run_rank(options: argparse.Namespace) -> None:
    """Reports a row's figures."""
    ringcomm.init()
    slow_rank = ringcomm.get_world_size() - 1
    for size in options.sizes:
        gradients = torch.ones(size // 4)
        ringcomm.all_reduce(gradients)  # makes its buffers
        ringcomm.stragglers()
        found, steps = [], []
        for _ in range(options.runs):
            begin = time.perf_counter()
            for _ in range(options.steps):
                time.sleep(STEP)
                ringcomm.all_reduce(gradients)
            steps.append((time.perf_counter() - begin) / options.steps)
            found.append(
                [(each.cause, each.rank) for each in ringcomm.stragglers(last=options.steps)]
            )
        named, none = (found.count(each) for each in ([("link", slow_rank)], []))
        say([named, none, options.runs - named - none, sorted(steps)[len(steps) // 2]])
    ringcomm.destroy_process_group()


def measured(engine: str, hosts: int, is_slow: bool, options: argparse.Namespace) -> list[Row]:
    with Network(hosts, rate=options.rate) as network:
        if is_slow:
            network.limit(hosts - 1, options.slow_rate)
        sizes = ",".join(map(str, options.sizes))
        arguments = ("--sizes", sizes, "--runs", str(options.runs), "--steps", str(options.steps))
        env = {"RINGCOMM_LINKS": engine}
        job = network.start(__file__, *arguments, placement=list(range(hosts)), env=env)
        (first, *_) = job.succeed(60 + 10 * options.runs * options.steps * STEP)
    return [
        Row(engine, hosts, size, is_slow, options.runs, *figures)
        for size, figures in zip(options.sizes, first.reports, strict=True)
    ]


def table(rows: list[Row]) -> str:
    lines = [
        "| links | hosts | all-reduce | slow | a step | runs | named | none named | others named |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.engine} | {row.hosts} | {readable_nbytes(row.nbytes)} | "
        f"{'one' if row.is_slow else 'none'} | {row.step * 1e3:.1f} ms | {row.runs} | "
        f"{row.named} | {row.none} | {row.others} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=listed(number(2)), default=[2, 3], help="(default: 2,3)")
    add("--engines", type=several(ENGINES), default=list(ENGINES))
    add("--rate", default="1gbit", help="of each host (default: %(default)s)")
    add("--slow-rate", default="400mbit", help="of the slow one (default: %(default)s)")
    add("--sizes", type=listed(nbytes), default="208K,2080K", help="(default: %(default)s)")
    add("--steps", type=number(1), default=20, help="(default: %(default)s)")
    add("--runs", type=number(1), default=100, help="(default: %(default)s)")
    add("-o", "--output", type=Path, help="without ending: .csv, .json and .md")
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return 0
    if missing():
        parser.error(str(missing()))
    rows = []
    for engine, hosts, is_slow in product(options.engines, options.hosts, (False, True)):
        rows += measured(engine, hosts, is_slow, options)
        print(asdict(rows[-1]), file=sys.stderr, flush=True)
    note = (
        f"Runs of {options.steps} steps of {STEP * 1e3:.0f} ms. Hosts send {options.rate}/s, a "
        f"slow one {options.slow_rate}/s."
    )
    report(options.output, Row, rows, note, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
