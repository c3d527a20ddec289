"""What an option of a group costs: an all-reduce with it, and without.

    python benchmarks/group_options.py reproducible --nproc 4
    python benchmarks/group_options.py reproducible --hosts 2x2 --rate 1gbit
    python benchmarks/group_options.py check_finite --nproc 2

Two groups of the same ranks take turns, so that both meet the same machine. The table shows the
median time of each, on the slowest rank, and the ratio. The hosts are namespaces of this machine
(tests/hosts/), joined by cables of the given rate and delay; this needs root.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import listed, report, rotated, run_on_ranks

import ringcomm
from ringcomm.arguments import nbytes, number
from ringcomm.groups import launched
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

OFF, ON = SETTINGS = ("off", "on")
OPTIONS: dict[str, tuple[Any, Any]] = {
    "reproducible": ("off", "ranks"),
    "check_finite": (False, True),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TURN = 2e-3  # seconds that the calls of a turn take together
PATIENCE = 3600.0  # seconds
LEAST_DELAY_MS = 0.05  # the delay that RINGCOMM_ACROSS gives for a network without any


@dataclass(frozen=True)
class Row:
    world_size: int
    dtype: str
    nbytes: int
    off: float  # seconds
    on: float

    @property
    def ratio(self) -> float:
        return self.on / self.off


def seconds(tensor: torch.Tensor, group: Any, repeats: int) -> float:
    """A call takes so long on the slowest rank."""
    ringcomm.barrier()
    started = time.perf_counter()
    for _ in range(repeats):
        ringcomm.all_reduce(tensor, group=group)
    took = torch.tensor((time.perf_counter() - started) / repeats, dtype=torch.float64)
    ringcomm.all_reduce(took, ringcomm.ReduceOp.MAX)
    return float(took)


def measure(groups: dict[str, Any], dtype: str, size: int, rounds: int) -> Row:
    tensor = torch.zeros(max(1, size // DTYPES[dtype].itemsize), dtype=DTYPES[dtype])
    once = max(seconds(tensor, group, 3) for group in groups.values())
    repeats = max(1, int(TURN / once))
    samples: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for r in range(rounds):
        for setting in rotated(SETTINGS, r):
            samples[setting].append(seconds(tensor, groups[setting], repeats))
    medians = {setting: statistics.median(samples[setting]) for setting in SETTINGS}
    return Row(dist.get_world_size(), dtype, size, medians[OFF], medians[ON])


def table(rows: list[Row]) -> str:
    lines = [
        "| world size | dtype | nbytes | off | on | on / off |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.world_size} | {row.dtype} | {readable_nbytes(row.nbytes)} | "
        f"{readable_seconds(row.off)} | {readable_seconds(row.on)} | {row.ratio:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def rank_main(options: argparse.Namespace) -> None:
    values = OPTIONS[options.option]
    groups = {
        setting: ringcomm.new_group(**{options.option: value})
        for setting, value in zip(SETTINGS, values, strict=True)
    }
    rows = [
        measure(groups, dtype, size, options.rounds)
        for dtype in options.dtypes
        for size in options.sizes
    ]
    if dist.get_rank() == 0:
        note = f"An all-reduce in place with {options.option}={values[1]!r} and without: medians."
        report(options.output, Row, rows, note, table(rows))


def on_hosts(options: argparse.Namespace) -> int:
    """Runs this script again, on hosts."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from hosts import Network, missing

    if why := missing():
        print(why, file=sys.stderr)
        return 1
    num_hosts, ranks_per_host = options.hosts
    with Network(num_hosts, rate=options.rate, delay_ms=options.delay) as network:
        goodput = network.goodput()
        across = f"{max(options.delay, LEAST_DELAY_MS):g}ms:{goodput / 1e9:.6f}GB/s"
        print(f"goodput {goodput / 1e6:.4g} MB/s", flush=True)
        job = network.start(
            __file__,
            *sys.argv[1:],
            ranks_per_host=ranks_per_host,
            env={"RINGCOMM_ACROSS": across},
        )
        for result in job.succeed(PATIENCE):
            print(result.stdout, end="")
    return 0


def hosts_and_ranks(text: str) -> tuple[int, int]:
    hosts, _, ranks = text.partition("x")
    return number(1)(hosts), number(1)(ranks)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("option", choices=OPTIONS, help="of ringcomm.Options")
    parser.add_argument("--nproc", type=number(1), default=4, help="ranks, without torchrun")
    parser.add_argument("--hosts", type=hosts_and_ranks, help="and ranks of each, such as 2x2")
    parser.add_argument("--rate", help="between hosts, such as 1gbit; as fast as it goes without")
    parser.add_argument("--delay", type=float, default=0.0, help="between hosts, milliseconds")
    parser.add_argument(
        "--sizes",
        type=listed(nbytes),
        default=[64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20],
        help="of the tensor, such as 1K,64K,1M",
    )
    parser.add_argument("--dtypes", type=listed(str), default=list(DTYPES), help=", ".join(DTYPES))
    parser.add_argument("--rounds", type=number(1), default=101, help="of each setting")
    parser.add_argument("-o", "--output", type=Path, help="without ending: .csv, .json and .md")
    options = parser.parse_args()
    if options.hosts and not launched():
        return on_hosts(options)
    return run_on_ranks(rank_main, options)


if __name__ == "__main__":
    raise SystemExit(main())
