"""What digests of results cost: an all-reduce with them, and without.

    python benchmarks/digests.py --nproc 2

What is recorded is settled once in a process. So jobs without digests, with them, and with the
stacks that they bring take turns, and the medians of all jobs are compared. A rank hashes its
result after each all-reduce; the rate is that of the time that digests add.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from common import listed, report, rotated

import ringcomm
from ringcomm.arguments import nbytes, number
from ringcomm.groups import launched
from ringcomm.launch import RanksFailedError, run_ranks
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

DIGESTS = "RINGCOMM_FLIGHT_DIGESTS"
STACKS = "RINGCOMM_FLIGHT_STACKS"
SETTINGS = {
    "without": {DIGESTS: "0", STACKS: "0"},
    "digests": {DIGESTS: "1", STACKS: "0"},
    "stacks": {DIGESTS: "1", STACKS: "1"},
}
SAMPLES = 15  # of each size in a job
TURN = 2e-3  # seconds that the calls of a sample take together


@dataclass(frozen=True)
class Row:
    world_size: int
    nbytes: int
    without: float  # seconds
    digests: float
    stacks: float  # with digests

    @property
    def gb_per_second(self) -> float:
        """How fast the result is hashed."""
        return self.nbytes / (self.digests - self.without) / 1e9


def seconds(tensor: torch.Tensor, repeats: int) -> float:
    """A call takes so long on the slowest rank."""
    ringcomm.barrier()
    started = time.perf_counter()
    for _ in range(repeats):
        ringcomm.all_reduce(tensor)
    took = torch.tensor((time.perf_counter() - started) / repeats, dtype=torch.float64)
    ringcomm.all_reduce(took, ringcomm.ReduceOp.MAX)
    return float(took)


def rank_main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    ringcomm.init()
    medians = {}
    for size in options.sizes:
        tensor = torch.zeros(max(1, size // 4))
        repeats = max(1, int(TURN / seconds(tensor, 3)))
        medians[size] = statistics.median(seconds(tensor, repeats) for _ in range(SAMPLES))
    if dist.get_rank() == 0:
        with options.samples.open("a") as file:
            print(json.dumps(list(medians.values())), file=file)
    ringcomm.destroy_process_group()


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Raises RanksFailedError if a job fails."""
    for r in range(options.rounds):
        for setting in rotated(list(SETTINGS), r):
            os.environ.update(SETTINGS[setting])
            run_ranks([*sys.argv, "--samples", str(folder / setting)], options.nproc)
    medians = {}
    for setting in SETTINGS:
        lines = (folder / setting).read_text().splitlines()
        medians[setting] = [
            statistics.median(jobs) for jobs in zip(*map(json.loads, lines), strict=True)
        ]
    return [
        Row(options.nproc, size, *times)
        for size, *times in zip(options.sizes, *medians.values(), strict=True)
    ]


def table(rows: list[Row]) -> str:
    lines = [
        "| world size | nbytes | without | with digests | ratio | of this, GB/s "
        "| with stacks, too | ratio |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        times = [readable_seconds(each) for each in (row.without, row.digests, row.stacks)]
        rate = f"{row.gb_per_second:.1f}" if row.nbytes >= 1 << 16 else ""
        lines.append(
            f"| {row.world_size} | {readable_nbytes(row.nbytes)} | {times[0]} | {times[1]} | "
            f"{row.digests / row.without:.2f} | {rate} | {times[2]} | "
            f"{row.stacks / row.without:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(1), default=2, help="ranks of a job")
    parser.add_argument(
        "--sizes",
        type=listed(nbytes),
        default=[8, 64 << 10, 4 << 20],
        help="of the tensor, such as 1K,64K,1M",
    )
    parser.add_argument("--rounds", type=number(1), default=15, help="jobs of each setting")
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, help="without ending: .csv, .json and .md")
    options = parser.parse_args()
    if launched():
        rank_main(options)
        return 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(options, Path(folder))
    except RanksFailedError as error:
        print(error, file=sys.stderr)
        return 1
    note = "Seconds of an all-reduce of float32 in place, medians of the jobs' medians."
    report(options.output, Row, rows, note, table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
