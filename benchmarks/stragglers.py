"""How surely a rank that is slow is named, and none where no rank is.

    python benchmarks/stragglers.py --runs 100

A run is 20 steps of about 50 ms, each with an all-reduce of 4 MB, or with DDP's or FSDP2's
collectives. The last rank is slow:

    none         no rank is
    sleeps       it sleeps for 2.5 ms more in each step, which is 5 %
    neighbour    another process takes 5 % of its core, 2.5 ms at a time

The ranks sleep in place of forward and backward, so that nothing but this makes them differ. With
--compute they compute, each on a core of its own, and are as uneven as the machine is; a neighbour
can be felt by such ranks only. With --hosts 2, each half of the ranks is a host of its own, and all
goes through gloo.

`ringcomm.stragglers` names them after each run; with --by status, what `python -m ringcomm status
--slow` does during each.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from common import report, run_on_ranks
from rich.progress import track
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm.arguments import number, several
from ringcomm.groups import launched
from ringcomm.usage import Parser
from ringcomm.waiting import watch

STEP, SLOWER = 0.05, 0.05  # seconds, and a share of them
WAYS = ("all_reduce", "DDP", "FSDP2")
SLOW = ("none", "sleeps", "neighbour")
BY = ("stragglers", "status")
CORES = sorted(os.sched_getaffinity(0))
NEIGHBOUR = """
import os, time
while os.getppid() == {parent}:
    time.sleep({idle})
    until = time.perf_counter() + {busy}
    while time.perf_counter() < until:
        pass
"""


@dataclass(frozen=True)
class Row:
    """Runs of one kind.

    Attributes:
        slow: what makes the last rank slow.
        named: in how many runs that rank alone was named.
        none: in how many no rank was named.
        others: in how many another rank was named.
        step: seconds of a step, all runs together.
        by: what names them.
    """

    way: str
    world_size: int
    hosts: int
    slow: str
    runs: int
    named: int
    none: int
    others: int
    step: float
    computes: bool
    by: str


@contextlib.contextmanager
def neighbour(core: int) -> Iterator[None]:
    """Takes 5 % of a core."""
    busy = STEP * SLOWER
    program = NEIGHBOUR.format(parent=os.getpid(), busy=busy, idle=STEP - busy)
    process = subprocess.Popen([sys.executable, "-c", program])
    os.sched_setaffinity(process.pid, {core})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def work(seconds: float) -> Callable[[], None]:
    """A computation that takes this long on an idle core, the same on all ranks."""
    left, right = torch.randn(2, 128, 128).unbind()
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - start)
    once = torch.tensor(sorted(times)[len(times) // 2])
    ringcomm.all_reduce(once, ringcomm.ReduceOp.MIN)
    repeats = round(seconds / once.item())

    def compute() -> None:
        for _ in range(repeats):
            torch.mm(left, right)

    return compute


def communication(way: str) -> Callable[[], None]:
    """What a step does besides."""
    if way == "all_reduce":
        gradients = torch.ones(1 << 20)
        return lambda: ringcomm.all_reduce(gradients)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))  # which takes no time to compute
    inputs = torch.randn(2, 64)
    if way == "DDP":
        trained: nn.Module = DistributedDataParallel(model, bucket_cap_mb=0.02)
    else:
        trained = fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))

    def step() -> None:
        trained(inputs).sum().backward()
        trained.zero_grad()

    return step


@contextlib.contextmanager
def watched(seconds: float, named: list[int]) -> Iterator[None]:
    """Looks at the groups of this host meanwhile, and adds the late ranks of this process's."""

    def look() -> None:
        for waits in watch(seconds):
            if os.getpid() in {rank.pid for rank in waits.group.ranks}:
                named.extend(late.rank for late in waits.late)

    thread = threading.Thread(target=look)
    thread.start()
    yield
    thread.join()


def num_calls() -> int:
    return dist.group.WORLD._get_backend(torch.device("cpu"))._get_sequence_number_for_group()


def measured(options: argparse.Namespace, way: str, slow: str) -> Row:
    communicate, slow_rank = communication(way), dist.get_world_size() - 1
    is_slow = dist.get_rank() == slow_rank
    compute = work(STEP) if options.compute else lambda: time.sleep(STEP)
    communicate()  # the first call makes a communication's buffers
    found = []
    began = time.perf_counter()
    runs = range(options.runs)
    shown = not dist.get_rank() and sys.stderr.isatty()
    for _ in track(runs, f"{way}, {slow}", transient=True) if shown else runs:
        before = num_calls()
        late: list[int] = []
        is_watched = options.by == "status" and is_slow
        with watched(options.steps * STEP, late) if is_watched else contextlib.nullcontext():
            for _ in range(options.steps):
                compute()
                if slow == "sleeps" and is_slow:
                    time.sleep(STEP * SLOWER)
                communicate()
        if options.by == "stragglers":
            late = [each.rank for each in ringcomm.stragglers(last=num_calls() - before)]
        found.append(late)
    took = time.perf_counter() - began
    named, none = (sum(each == expected for each in found) for expected in ([slow_rank], []))
    return Row(
        way, dist.get_world_size(), options.hosts, slow, options.runs, named, none,
        options.runs - named - none, took / (options.steps * options.runs), options.compute,
        options.by,
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if options.compute:
        os.sched_setaffinity(0, {CORES[rank]})
    rows = []
    for way, slow in itertools.product(options.ways, options.slow):
        is_beside = slow == "neighbour" and rank == world_size - 1
        with neighbour(CORES[rank]) if is_beside else contextlib.nullcontext():
            rows.append(measured(options, way, slow))
    if rank == world_size - 1:  # which alone looks, if --by status
        doing = "compute" if options.compute else "sleep"
        note = (
            f"Runs of {options.steps} steps of {STEP * 1e3:.0f} ms, in which the ranks {doing}. "
            f"Named by {options.by}."
        )
        report(options.output, Row, rows, note, table(rows))


def table(rows: list[Row]) -> str:
    lines = [
        "| a step | ranks | hosts | slow | runs | named | none named | others named |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.way} | {row.world_size} | {row.hosts} | {row.slow} | {row.runs} | {row.named} | "
        f"{row.none} | {row.others} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(2), default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--hosts", type=number(1), default=1, help="(default: %(default)s)")
    parser.add_argument("--ways", type=several(WAYS), default=list(WAYS))
    parser.add_argument("--slow", type=several(SLOW), default=["none", "sleeps"])
    parser.add_argument("--by", choices=BY, default=BY[0], help="(default: %(default)s)")
    parser.add_argument("--compute", action="store_true", help="the ranks compute, not sleep")
    parser.add_argument("--steps", type=number(1), default=20, help="(default: %(default)s)")
    parser.add_argument("--runs", type=number(1), default=100, help="(default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, help="without ending: .csv, .json and .md")
    options = parser.parse_args()
    if options.nproc % options.hosts:
        parser.error(f"{options.nproc} ranks cannot be divided among {options.hosts} hosts")
    if options.compute and options.nproc > len(CORES):
        parser.error(f"--compute: {options.nproc} ranks, and this process has {len(CORES)} cores")
    if "neighbour" in options.slow and not options.compute:
        parser.error("--slow neighbour: ranks that sleep do not feel it; add --compute")
    if launched() and options.hosts > 1:
        host = int(os.environ["RANK"]) // (options.nproc // options.hosts)
        os.environ.update(RINGCOMM_HOSTID=f"host{host}", RINGCOMM_LINKS="gloo")
    return run_on_ranks(run, options)


if __name__ == "__main__":
    sys.exit(main())
