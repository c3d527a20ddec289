"""How long an all-reduce takes beside processes that compute on the ranks' cores.

    python benchmarks/busy_cores.py --world-sizes 2,4 --busy 0,2,4 -o busy_cores
    python benchmarks/busy_cores.py --mpis FOLDER,FOLDER

For each number of ranks and of such processes, jobs of ring, gloo and each MPI take turns. A job
makes float32 sums in place, one after the other, and times each call. FOLDER is where an MPI is
installed, as for peers.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from common import listed, rotated
from jobs import (
    WrongResultsError,
    add_job_arguments,
    busy_processes,
    measure_and_report,
    run_job,
)

from ringcomm.arguments import nbytes, number
from ringcomm.bench.mpirun import mpirun
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

OURS, GLOO = "ring", "gloo"
OF_MPI = "mpi:"  # and its folder
WARM_UP = 20  # calls
FEWEST = 30  # calls


@dataclass(frozen=True)
class Row:
    """One backend at one size: medians over its jobs, in seconds, of what rank 0 sees.

    Attributes:
        busy: processes that compute, on all cores together.
        calls: of all jobs.
        p99: what 99 % of the calls do not exceed.
    """

    world_size: int
    busy: int
    size: int
    backend: str
    calls: int
    mean: float
    median: float
    p99: float


AllReduce = Callable[[torch.Tensor], object]


def all_reduce_of(backend: str) -> AllReduce:
    if backend.startswith(OF_MPI):
        from mpi4py import MPI

        return lambda tensor: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor.numpy(), MPI.SUM)
    dist.init_process_group(backend)
    return dist.all_reduce


def world_size_of(all_reduce: AllReduce) -> int:
    one = torch.ones(1)
    all_reduce(one)
    return int(one)


def seconds_of_calls(all_reduce: AllReduce, size: int, seconds: float) -> list[float]:
    """For about so long, as many calls on every rank.

    Raises WrongResultsError.
    """
    tensor = torch.ones(max(1, size // 4))
    all_reduce(tensor)
    world_size = world_size_of(all_reduce)
    if not bool((tensor == world_size).all()):
        raise WrongResultsError(f"a sum of {size} bytes is wrong")
    tensor.zero_()
    began = time.perf_counter()
    for _ in range(WARM_UP):
        all_reduce(tensor)
    took = torch.tensor([(time.perf_counter() - began) / WARM_UP])
    all_reduce(took)
    found = []
    for _ in range(max(FEWEST, int(seconds * world_size / float(took)))):
        began = time.perf_counter()
        all_reduce(tensor)
        found.append(time.perf_counter() - began)
    return found


def time_calls(options: argparse.Namespace) -> None:
    """On a rank."""
    torch.set_num_threads(1)
    all_reduce = all_reduce_of(options.backend)
    found = {size: seconds_of_calls(all_reduce, size, options.seconds) for size in options.sizes}
    if options.backend.startswith(OF_MPI):
        from mpi4py import MPI

        is_first = MPI.COMM_WORLD.Get_rank() == 0
    else:
        is_first = dist.get_rank() == 0
        dist.destroy_process_group()
    if is_first:
        torch.save(found, options.result)


def run(options: argparse.Namespace, backend: str, nproc: int) -> dict[int, list[float]]:
    """Raises RanksFailedError and, of an MPI, WrongResultsError."""
    result = options.folder / "job"
    result.unlink(missing_ok=True)
    if backend.startswith(OF_MPI):
        folder = Path(backend.removeprefix(OF_MPI))
        arguments = ["--step", "time", "--backend", backend, "--result", str(result)]
        if mpirun([*sys.argv, *arguments], nproc, folder) != 0:
            raise WrongResultsError(f"the ranks of {folder.name} failed")
    else:
        run_job(options, "time", result, backend, nproc)
    loaded: dict[int, list[float]] = torch.load(result)
    return loaded


def rows_of(
    world_size: int, busy: int, backend: str, jobs: Sequence[dict[int, list[float]]]
) -> list[Row]:
    rows = []
    for size in jobs[0]:
        calls = [sorted(job[size]) for job in jobs]
        rows.append(
            Row(
                world_size=world_size,
                busy=busy,
                size=size,
                backend=Path(backend.removeprefix(OF_MPI)).name,
                calls=sum(map(len, calls)),
                mean=statistics.median(map(statistics.mean, calls)),
                median=statistics.median(map(statistics.median, calls)),
                p99=statistics.median(each[int(0.99 * len(each))] for each in calls),
            )
        )
    return rows


def measure(options: argparse.Namespace) -> list[Row]:
    backends = [OURS, GLOO, *(OF_MPI + folder for folder in options.mpis)]
    rows = []
    for nproc in options.world_sizes:
        for busy in options.busy:
            jobs: dict[str, list[dict[int, list[float]]]] = {backend: [] for backend in backends}
            with busy_processes(busy):
                for r in range(options.rounds):
                    for backend in rotated(backends, r):
                        jobs[backend].append(run(options, backend, nproc))
            for backend in backends:
                rows += rows_of(nproc, busy, backend, jobs[backend])
            print(f"{nproc} ranks beside {busy}: measured", file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    backends = list(dict.fromkeys(row.backend for row in rows))
    peers = [backend for backend in backends if backend != OURS]
    columns = ["ranks", "busy", "size", "", OURS, *(f"{peer}, over {OURS}" for peer in peers)]
    lines = [f"| {' | '.join(columns)} |", f"|---:|---:|---:|---|{'---:|' * len(backends)}"]
    cases: dict[tuple[int, int, int], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.world_size, row.busy, row.size), {})[row.backend] = row
    for (world_size, busy, size), found in cases.items():
        for name in ("mean", "median", "p99"):
            ours = getattr(found[OURS], name)
            cells = [str(world_size), str(busy), readable_nbytes(size), name]
            cells.append(readable_seconds(ours))
            cells += [f"{getattr(found[peer], name) / ours:.1f}" for peer in peers]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def note(options: argparse.Namespace) -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        f"`dist.all_reduce` of float32 in place, on {cores} cores, beside `busy` processes that "
        f"compute without a pause. A job calls it for {options.seconds:g} s at each size, at least "
        f"{FEWEST} times; medians of {options.rounds} jobs. Of the others the table has their time "
        f"over {OURS}'s: above 1 they take longer."
    )


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--world-sizes", type=listed(number(2)), default=[2, 4], help="(default: 2,4)"
    )
    parser.add_argument(
        "--sizes",
        type=listed(nbytes),
        default=[8, 1 << 10, 64 << 10, 1 << 20, 16 << 20],
        help="bytes (default: 8,1K,64K,1M,16M)",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of a job at each size (default: 1)"
    )
    parser.add_argument("--mpis", type=listed(str), default=[], help="folders, comma-separated")
    add_job_arguments(parser, busy=listed(number(0)), default=[0, 2, 4])
    options = parser.parse_args()
    if options.step:
        time_calls(options)
        return 0
    return measure_and_report(options, measure, Row, note, table)


if __name__ == "__main__":
    sys.exit(main())
