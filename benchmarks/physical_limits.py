"""How fast the ranks of this machine could be at best, and how far from that they are.

    python benchmarks/physical_limits.py --nproc 2
    python benchmarks/physical_limits.py --nproc 2 --csv bench.csv

Measures the round trip of a cache line between two ranks' cores, and how fast every rank copies
what another has just written, all at once, by size. An all-reduce of `nbytes` among n ranks is no
faster than what has to come to each of them: a line from every other rank, half a round trip away,
and 2(n-1)/n x nbytes (Patarasuk and Yuan, 2009, section 3), with more ranks than cores as many
times longer. With the CSV file of `python -m ringcomm bench all_reduce`, says how many times longer
each backend took in place.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import listed, run_on_ranks, tools
from rich.console import Console
from rich.table import Table

import ringcomm
from ringcomm.arguments import nbytes, number
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

SIZES = [8 << shift for shift in range(0, 26, 2)]  # bytes
_ROUNDS = 20_000
_LEAST_NBYTES = 1 << 22  # copied in one sample, so that the clock does not matter


def shared(name: str, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros that all ranks share, until this process ends."""
    path = [""]
    if dist.get_rank() == 0:
        descriptor, path[0] = tempfile.mkstemp(prefix=f"ringcomm-{name}-", dir="/dev/shm")
        os.ftruncate(descriptor, nbytes)
        os.close(descriptor)
    dist.broadcast_object_list(path)
    tensor = torch.from_file(path[0], True, nbytes // dtype.itemsize, dtype=dtype)
    ringcomm.barrier()
    if dist.get_rank() == 0:
        os.unlink(path[0])
    return tensor


def line_round_trip() -> float:
    """Seconds, between ranks 0 and 1; the least of five tries."""
    taken = torch.full((1,), float("inf"), dtype=torch.float64)
    lines = shared("lines", 256, torch.int64)
    for _ in range(5):
        ringcomm.barrier()
        if dist.get_rank() == 0:
            lines.zero_()
        ringcomm.barrier()
        if dist.get_rank() < 2:
            seconds = tools().line_round_trip(lines, dist.get_rank() == 0, _ROUNDS)
            taken.clamp_(max=seconds)
    ringcomm.broadcast(taken, 0)
    return float(taken)


def seconds_to_read(size: int, samples: int = 7) -> float:
    """For each rank to copy so many bytes that the next rank has just written, all at once.

    What the call itself takes, as it does for a byte of its own, is left out.
    """
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = shared("parts", n * max(size, 64), torch.uint8).chunk(n)
    own, theirs = parts[rank][:size], parts[(rank + 1) % n][:size]
    source, target = torch.zeros_like(own), torch.zeros_like(own)
    byte, other = torch.zeros(2, 1, dtype=torch.uint8)
    taken = []
    for _ in range(samples + 1):
        seconds = 0.0
        repeats = max(1, min(200, _LEAST_NBYTES // size))
        for _ in range(repeats):
            own.copy_(source)
            ringcomm.barrier()
            start = time.perf_counter()
            target.copy_(theirs)
            middle = time.perf_counter()
            byte.copy_(other)
            seconds += middle - start - (time.perf_counter() - middle)
            ringcomm.barrier()
        taken.append(max(seconds, 0.0) / repeats)
    slowest = torch.tensor([statistics.median(taken[1:])], dtype=torch.float64)
    ringcomm.all_reduce(slowest, ringcomm.ReduceOp.MAX)
    return float(slowest)


def limit(size: int, round_trip: float, to_read: float, world_size: int, cores: int) -> float:
    """Seconds that an all-reduce of so many bytes takes at least; `to_read`: that many bytes."""
    turns = max(1.0, world_size / cores)
    return max(round_trip / 2, 2 * (world_size - 1) / world_size * to_read) * turns


def measured(path: Path) -> dict[str, dict[int, float]]:
    """Seconds by backend and size, of the all-reduces in place in a file of bench's."""
    found: dict[str, dict[int, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["collective"] == "all_reduce" and row["in_place"] == "True":
                found.setdefault(row["backend"], {})[int(row["size"])] = float(row["time"])
    return found


def on_rank(options: argparse.Namespace) -> None:
    others = measured(options.csv) if options.csv else {}
    sizes = options.sizes or sorted({size for times in others.values() for size in times}) or SIZES
    round_trip = line_round_trip()
    world_size, cores = dist.get_world_size(), len(os.sched_getaffinity(0))
    limits = {
        size: limit(size, round_trip, seconds_to_read(size), world_size, cores) for size in sizes
    }
    if dist.get_rank() != 0:
        return
    print(f"{world_size} ranks on {cores} cores")
    print(f"a cache line to another core and one back: {readable_seconds(round_trip)}")
    table = Table("nbytes", "at least", *(f"{name}, times that" for name in others))
    for size, seconds in limits.items():
        times = [others[name].get(size) for name in others]
        cells = ["" if time is None else f"{time / seconds:.1f}" for time in times]
        table.add_row(readable_nbytes(size), readable_seconds(seconds), *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.output:
        document = {
            "world_size": world_size,
            "cores": cores,
            "line_round_trip": round_trip,
            "at_least": {str(size): seconds for size, seconds in limits.items()},
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")
        print(f"# wrote {options.output.resolve()}")


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(1), default=2, help="ranks to start (default: 2)")
    parser.add_argument(
        "--sizes", type=listed(nbytes), help="comma-separated, such as 8,64K (default: the file's)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="of bench --csv")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the limits as JSON")
    options = parser.parse_args()
    if options.nproc < 2:
        parser.error(f"--nproc is {options.nproc}; one rank alone has nothing to wait for")
    return run_on_ranks(on_rank, options)


if __name__ == "__main__":
    sys.exit(main())
