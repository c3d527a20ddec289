"""What torch itself takes of `dist.all_reduce`, and what is left to the ring.

    python benchmarks/torch_part.py --nproc 2

On the same float32 tensor take turns: `ringcomm.all_reduce`; `dist.all_reduce` on torch's own
"fake", a backend that does nothing, so that all its time is torch's; each such call followed by a
direct one (`both`), which shows what torch's part takes where processes that share a core change
between calls and push each other's code out of its caches; and `dist.all_reduce` on "ring". A time
is that of one call of many in a row, from when the first rank begins until the last one is done, a
median over the rounds: where ranks share cores, torch's part is that of all of them. `goal` is
torch's part and 1.2 times the direct call: what a backend can come down to that makes a Work
besides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers "fake"
from common import listed, report, run_on_ranks

import ringcomm
from ringcomm.arguments import nbytes, number
from ringcomm.units import readable_nbytes
from ringcomm.usage import Parser

TURN = 0.01  # seconds that the calls of a turn take together
MORE = 1.2  # times the direct call

Call = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Row:
    """Seconds per call."""

    ranks: int
    nbytes: int
    direct: float
    torch_part: float
    both: float
    by_torch: float

    @property
    def goal(self) -> float:
        return self.torch_part + MORE * self.direct


def seconds(call: Call, tensor: torch.Tensor, calls: int) -> float:
    """From when the first rank begins until the last one is done: they may share cores."""
    dist.barrier()
    began = time.monotonic()  # which is one clock for all processes
    for _ in range(calls):
        call(tensor)
    ends = torch.tensor([-began, time.monotonic()], dtype=torch.float64)
    ringcomm.all_reduce(ends, op=dist.ReduceOp.MAX)
    return ends.sum().item() / calls


def measure(size: int, fake: dist.ProcessGroup, rounds: int) -> Row:
    tensor = torch.zeros(size // 4)
    contenders: dict[str, Call] = {
        "direct": ringcomm.all_reduce,
        "torch_part": lambda tensor: dist.all_reduce(tensor, group=fake),
        "both": lambda tensor: (dist.all_reduce(tensor, group=fake), ringcomm.all_reduce(tensor)),
        "by_torch": dist.all_reduce,
    }
    calls = max(3, int(TURN / seconds(dist.all_reduce, tensor, 10)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            samples[name].append(seconds(call, tensor, calls))
    medians = {name: statistics.median(found) for name, found in samples.items()}
    return Row(dist.get_world_size(), size, **medians)


def table(rows: list[Row]) -> str:
    lines = [
        "| bytes | direct | torch's part | both | dist.all_reduce | of both | goal | of goal |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        times = (row.direct, row.torch_part, row.both, row.by_torch)
        cells = [readable_nbytes(row.nbytes), *(f"{1e6 * value:.2f} µs" for value in times)]
        cells += [f"{row.by_torch / row.both:.2f}", f"{1e6 * row.goal:.2f} µs"]
        lines.append(f"| {' | '.join(cells)} | {row.by_torch / row.goal:.2f} |")
    return "\n".join(lines) + "\n"


def rank_main(options: argparse.Namespace) -> None:
    ranks = list(range(dist.get_world_size()))
    fake = dist.new_group(ranks, backend="fake")
    assert isinstance(fake, dist.ProcessGroup)
    rows = [measure(size, fake, options.rounds) for size in options.sizes]
    if dist.get_rank() > 0:
        return
    note = f"Medians of {options.rounds} turns; {len(ranks)} ranks."
    report(options.output, Row, rows, note, table(rows))


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nproc", type=number(1), default=2, help="ranks, where no launcher starts them"
    )
    parser.add_argument("--sizes", type=listed(nbytes), default=listed(nbytes)("8,1K,16K,64K,256K"))
    parser.add_argument("--rounds", type=number(1), default=51)
    parser.add_argument("--output", type=Path, help="writes OUTPUT.csv, .json and .md")
    return run_on_ranks(rank_main, parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
