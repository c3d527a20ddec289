"""Times all_reduce of float32 on CPUs: "ring" and gloo, both through torch.distributed.all_reduce.

    python benchmarks/all_reduce_cpu.py --nproc 2 --sizes 1K,1M,64M

Both are timed in one run, in turn, so that they see the same machine. Every sample starts after a
barrier and counts as long as the slowest rank takes; medians are printed, and gloo's over the
ring's. Sums are checked before the samples and after them. The column "direct call" is
ringcomm.all_reduce on the same ring. algbw is nbytes over the ring's time, busbw is algbw times
2(n-1)/n, in GB/s of 1e9 bytes.
"""

from __future__ import annotations

import argparse
import csv
import functools
import re
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

import ringcomm
from ringcomm.cli.launch import RanksFailedError, run_ranks
from ringcomm.cli.timing import median_seconds, readable_nbytes, readable_seconds
from ringcomm.groups import launched

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FIELDS = ("world_size", "nbytes", "ring_s", "gloo_s", "direct_call_s", "gloo_over_ring")


def sizes(text: str) -> list[int]:
    """1K,1M,64M as bytes."""
    found = [re.fullmatch(r"(\d+)([KMG]?)", part) for part in text.upper().split(",")]
    nbytes = [int(one[1]) * UNITS[one[2]] if one else 0 for one in found]
    if any(n <= 0 or n % 4 for n in nbytes):
        raise argparse.ArgumentTypeError(
            f"must be such as 1K,1M,64M, each a multiple of 4 bytes, got {text!r}"
        )
    return nbytes


def measure(nbytes: int, samples: int, gloo: dist.ProcessGroup) -> dict[str, float]:
    seconds = median_seconds(
        {
            "ring": dist.all_reduce,
            "gloo": functools.partial(dist.all_reduce, group=gloo),
            "direct call": ringcomm.all_reduce,
        },
        nbytes,
        samples,
    )
    ring, other, direct = seconds.values()
    world_size = dist.get_world_size()
    return dict(zip(FIELDS, (world_size, nbytes, ring, other, direct, other / ring), strict=True))


def table(rows: list[dict[str, float]]) -> Table:
    world_size = int(rows[0]["world_size"])
    columns = ("nbytes", "ring", "gloo", "gloo / ring", "direct call", "algbw", "busbw")
    result = Table(*columns, title=f"all_reduce, float32, {world_size} processes", box=None)
    for column in result.columns:
        column.justify = "right"
    for row in rows:
        algbw = row["nbytes"] / row["ring_s"] / 1e9
        result.add_row(
            readable_nbytes(int(row["nbytes"])),
            readable_seconds(row["ring_s"]),
            readable_seconds(row["gloo_s"]),
            f"{row['gloo_over_ring']:.1f}",
            readable_seconds(row["direct_call_s"]),
            f"{algbw:.2f}",
            f"{algbw * 2 * (world_size - 1) / world_size:.2f}",
        )
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="ring against gloo on this host's CPUs")
    parser.add_argument("--nproc", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--sizes", type=sizes, default="1K,64K,1M,64M", help="such as 1K,1M,64M")
    parser.add_argument("--iters", type=int, default=21, help="samples (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="write the seconds to this file, too")
    options = parser.parse_args()
    if not launched():
        try:
            run_ranks(sys.argv, options.nproc)
        except RanksFailedError as error:
            print(error, file=sys.stderr)
            return 1
        return 0

    torch.set_num_threads(1)
    ringcomm.init(timedelta(seconds=120))
    gloo = dist.new_group(backend="gloo")
    rows = [measure(nbytes, options.iters, gloo) for nbytes in options.sizes]
    if dist.get_rank() == 0:
        Console().print(table(rows))
        if options.csv:
            with options.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(rows)
    ringcomm.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
