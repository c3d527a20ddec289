"""What the others lose after they have waited for a rank that is late, and what waiting takes.

    python benchmarks/late_rank.py --nproc 2

The last rank computes for so long before it calls, and the others wait for it. `lost` is what an
all-reduce of 8 bytes, or a receive by rank 0, takes from when the last rank calls until the last of
the others has what it waits for: a median over the rounds. `busy` is how much of its wait rank 0
spends on a processor, with all its threads. The ring's direct calls and torch.distributed's on
gloo take turns.
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
from common import listed, report, run_on_ranks

import ringcomm
from ringcomm.arguments import number
from ringcomm.usage import Parser

Call = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Row:
    """`late` in milliseconds, `lost` in seconds, `busy` as a part of the wait."""

    ranks: int
    call: str
    backend: str
    late: float
    lost: float
    busy: float


def compute(until: float) -> None:
    while time.monotonic() < until:
        pass


def message(send: Call, recv: Call) -> Call:
    """From the last rank to rank 0, of which the others have no part."""

    def call(tensor: torch.Tensor) -> None:
        if dist.get_rank() == dist.get_world_size() - 1:
            send(tensor)
        elif dist.get_rank() == 0:
            recv(tensor)

    return call


def once(call: Call, late: float) -> tuple[float, float]:
    """Lost, and busy, on whatever rank it is."""
    tensor = torch.zeros(1, dtype=torch.float64)
    is_last = dist.get_rank() == dist.get_world_size() - 1
    ringcomm.barrier()
    began, used = time.monotonic(), time.process_time()
    if is_last:
        compute(began + late)
    called = time.monotonic()
    call(tensor)
    done, used = time.monotonic(), time.process_time() - used
    # The clock is one for all processes.
    ends = torch.zeros(2, dtype=torch.float64)
    ends[0 if is_last else 1] = called if is_last else done
    ringcomm.all_reduce(ends, op=dist.ReduceOp.MAX)
    return (ends[1] - ends[0]).item(), used / (done - began)


def measure(calls: dict[tuple[str, str], Call], late: float, rounds: int) -> list[Row]:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(once(call, late))
    return [
        Row(
            dist.get_world_size(),
            *name,
            1e3 * late,
            statistics.median(lost for lost, _ in samples),
            statistics.median(busy for _, busy in samples),
        )
        for name, samples in found.items()
    ]


def table(rows: list[Row]) -> str:
    lines = ["| call | backend | late | lost | busy |", "|---|---|---:|---:|---:|"]
    for row in rows:
        times = f"{row.late:g} ms | {1e6 * row.lost:.0f} µs | {row.busy:.0%}"
        lines.append(f"| {row.call} | {row.backend} | {times} |")
    return "\n".join(lines) + "\n"


def rank_main(options: argparse.Namespace) -> None:
    gloo = dist.new_group(backend="gloo")
    last = dist.get_world_size() - 1
    calls: dict[tuple[str, str], Call] = {
        ("all_reduce", "ringcomm"): ringcomm.all_reduce,
        ("all_reduce", "gloo"): lambda tensor: dist.all_reduce(tensor, group=gloo),
        ("recv", "ringcomm"): message(
            lambda tensor: ringcomm.send(tensor, 0), lambda tensor: ringcomm.recv(tensor, last)
        ),
        ("recv", "gloo"): message(
            lambda tensor: dist.send(tensor, 0, group=gloo),
            lambda tensor: dist.recv(tensor, last, group=gloo),
        ),
    }
    rows = [row for late in options.late for row in measure(calls, late / 1e3, options.rounds)]
    if dist.get_rank() > 0:
        return
    note = f"Medians of {options.rounds} rounds; {last + 1} ranks."
    report(options.output, Row, rows, note, table(rows))


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nproc", type=number(1), default=2, help="ranks, where no launcher starts them"
    )
    parser.add_argument(
        "--late", type=listed(float), default=[0, 1, 3, 10, 30], help="milliseconds"
    )
    parser.add_argument("--rounds", type=number(1), default=51)
    parser.add_argument("--output", type=Path, help="writes OUTPUT.csv, .json and .md")
    return run_on_ranks(rank_main, parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
