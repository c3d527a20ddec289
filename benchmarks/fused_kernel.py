"""Times one rank's fused kernel on one GPU, with itself as all its peers, beside a copy.

    python benchmarks/fused_kernel.py --algorithms ring,direct --nproc 4 --sizes 1M,64M

Nothing is waited for, and peers' memory is the GPU's own: what is left is how fast the kernel moves
and adds data. "moved" is what the steps of the rank's program read and write, "share" how fast that
goes in comparison with a copy of as many bytes as the tensor, of which each is read and written.
"wrong" counts the wrong elements of one_shot, whose sums are known.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from common import listed, tools, write_csv
from gpu_suite import device as gpu
from reduce_kernels import device_timer
from rich.console import Console
from rich.table import Table
from torch.distributed import ReduceOp

import ringcomm
from ringcomm._C.plan import LocationKind
from ringcomm.arguments import nbytes, number, several
from ringcomm.bench.options import DTYPES
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

FIELDS = ("gpu", "algorithm", "world_size", "ctas", "dtype", "nbytes")
FIELDS += ("fused_s", "copy_s", "moved_nbytes", "wrong")


def moved_nbytes(algorithm: str, world_size: int, nbytes: int) -> float:
    """Read and written by rank 0's steps; chunks are taken to be equal."""
    plans = ringcomm.plan.all_reduce(algorithm, world_size=world_size)
    values = 0
    for action in plans.program(0):
        own = (action.own.kind != LocationKind.NOWHERE, action.store.kind != LocationKind.NOWHERE)
        values += len(action.sources) + sum(own) + bool(action.readers)
    return values * nbytes / plans[0].num_chunks


def wrong(alone: Any, tensor: torch.Tensor, world_size: int) -> int:
    pattern = torch.arange(tensor.numel(), dtype=torch.int32, device=tensor.device).remainder_(7)
    tensor.copy_(pattern)
    alone.all_reduce(tensor, ReduceOp.SUM)
    return int((tensor != (pattern * world_size).to(tensor.dtype)).sum())


def measure(algorithm: str, dtype: torch.dtype, size: int, options: argparse.Namespace) -> dict:
    on = gpu.own(0)
    alone = tools().FusedAlone(options.nproc, algorithm, options.ctas)
    tensor = torch.zeros(max(1, size // dtype.itemsize), dtype=dtype, device=on)
    found = wrong(alone, tensor, options.nproc) if algorithm == "one_shot" else 0
    other = torch.empty_like(tensor.zero_())
    timers = {
        "fused_s": device_timer(lambda: alone.all_reduce(tensor, ReduceOp.SUM), options.repeats),
        "copy_s": device_timer(lambda: other.copy_(tensor), options.repeats),
    }
    taken: dict[str, list[float]] = {name: [] for name in timers}
    for name, seconds in [*timers.items()] * (options.iters + 1):
        taken[name].append(seconds())
    return {
        "gpu": gpu.label(),
        "algorithm": algorithm,
        "world_size": options.nproc,
        "ctas": options.ctas,
        "dtype": str(dtype).removeprefix("torch."),
        "nbytes": size,
        **{name: statistics.median(each[1:]) for name, each in taken.items()},
        "moved_nbytes": moved_nbytes(algorithm, options.nproc, size),
        "wrong": found,
    }


def table(rows: list[dict]) -> Table:
    result = Table("algorithm", "ranks", "CTAs", "dtype", "nbytes", box=None)
    for name in ("time", "moved\nGB/s", "copy\nGB/s", "share", "wrong"):
        result.add_column(name, justify="right")
    for row in rows:
        rate = row["moved_nbytes"] / row["fused_s"] / 1e9
        copy = 2 * row["nbytes"] / row["copy_s"] / 1e9
        result.add_row(
            *(str(row[field]) for field in FIELDS[1:5]),
            readable_nbytes(row["nbytes"]),
            readable_seconds(row["fused_s"]),
            *(f"{rate:.1f}", f"{copy:.1f}", f"{rate / copy:.0%}", str(row["wrong"])),
        )
    return result


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--algorithms",
        type=several(tuple(ALGORITHMS["all_reduce"])),
        default="ring,direct,one_shot",
    )
    parser.add_argument("--nproc", type=number(2), default=4, help="ranks (default: %(default)s)")
    parser.add_argument("--ctas", type=number(1), default=32)
    parser.add_argument("--dtypes", type=several(tuple(DTYPES)), default=["float", "bfloat16"])
    parser.add_argument(
        "--sizes", type=listed(nbytes), default="64K,1M,16M,64M", help="of the tensor"
    )
    parser.add_argument("--iters", type=number(1), default=9, help="samples (default: 9)")
    parser.add_argument("--repeats", type=number(1), default=20, help="calls in a sample")
    parser.add_argument("--csv", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    if torch.cuda.device_count() == 0:
        parser.error("it needs a GPU, and torch finds none")
    rows = []
    for algorithm, name, size in itertools.product(
        options.algorithms, options.dtypes, options.sizes
    ):
        rows.append(measure(algorithm, getattr(torch, DTYPES[name]), size, options))
        if options.csv:
            write_csv(options.csv, FIELDS, rows[-1:], append=len(rows) > 1)
    print(gpu.label())
    Console(soft_wrap=True, highlight=False).print(table(rows))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
