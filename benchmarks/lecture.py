"""CS336's benchmark of all-reduce and reduce-scatter, for every backend, beside busbw.

    python benchmarks/lecture.py --nproc 4 --num-elements 1M --backends ring,gloo

Stanford's CS336 (Language Modeling from Scratch), lecture 8, times one call after one warm-up call,
on each rank by itself, and turns that rank's duration into a bandwidth:

    all_reduce       nbytes of the tensor * 2 (n-1) / (n * duration)
    reduce_scatter   nbytes of the output *   (n-1) / (n * duration)

in units of 1024^3 bytes per second. The columns "rank 0", "rank 1", ... are these. They differ from
nccl-tests' busbw (`python -m ringcomm bench`), the last column, in four ways:

  * reduce_scatter counts the output, one chunk, where busbw counts the input, n chunks: each rank
    sends n-1 chunks, so busbw is n times as high. all_reduce's formulas are the same.
  * GB means 1024^3 bytes there and 1e9 bytes here: 7 % less for the same time.
  * One call is a single sample, with the delays of a first call in it, and on CPUs the ranks do not
    begin together; busbw is by the median of many, each begun after a barrier.
  * Every rank reports its own duration, so that ranks that come late to a call look faster than
    those that wait for them; busbw takes the slowest.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import TIMEOUT, check_backends, own_device, run_on_ranks
from rich.console import Console
from rich.table import Table

import ringcomm
from ringcomm.arguments import nbytes, number, several
from ringcomm.bench.cases import case_of
from ringcomm.bench.contenders import TorchContender, make_contenders, newest
from ringcomm.bench.sampling import measure
from ringcomm.units import readable_seconds
from ringcomm.usage import Parser


def timed_once(call: Callable[[], object], device: torch.device, group: object) -> float:
    """Seconds of the second of two calls, taken as the lecture takes them."""

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()  # the kernels of the call
            dist.barrier(group=group)  # the other ranks

    call()  # warm-up
    synchronize()
    start = time.time()
    call()
    synchronize()
    return time.time() - start


def all_reduce(
    num_elements: int, device: torch.device, group: dist.ProcessGroup
) -> tuple[float, float]:
    """Duration and bandwidth, in seconds and bytes/s."""
    world_size = dist.get_world_size(group)
    tensor = torch.randn(num_elements, device=device)
    duration = timed_once(lambda: dist.all_reduce(tensor, group=group), device, group)
    sent = tensor.nbytes * 2 * (world_size - 1)  # inputs on their way in, results on their way out
    return duration, sent / (world_size * duration)


def reduce_scatter(
    num_elements: int, device: torch.device, group: dist.ProcessGroup
) -> tuple[float, float]:
    """Duration and bandwidth, in seconds and bytes/s."""
    world_size = dist.get_world_size(group)
    # The lecture's matrix with a row per rank, which gloo wants flat.
    given = torch.randn(world_size * num_elements, device=device)
    output = torch.empty(num_elements, device=device)
    call = newest(dist, "reduce_scatter_single", "reduce_scatter_tensor")
    duration = timed_once(lambda: call(output, given, group=group), device, group)
    sent = output.nbytes * (world_size - 1)  # as the lecture counts
    return duration, sent / (world_size * duration)


def busbw(name: str, num_elements: int, contender: TorchContender, device: torch.device) -> float:
    """Bytes/s by nccl-tests' definition, in the lecture's case."""
    world_size = dist.get_world_size()
    size = 4 * num_elements * (world_size if name == "reduce_scatter" else 1)
    case = case_of(name, size, torch.float32, "sum", 0, dist.get_rank(), world_size, device)
    in_place = name == "all_reduce"
    results, _ = measure([contender], case, samples=5, warmups=1)
    return (
        case.nbytes * case.collective.factor(world_size) / results[contender.name, in_place].median
    )


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(1), default=4, help="ranks (default: %(default)s)")
    parser.add_argument(
        "--num-elements",
        type=nbytes,
        default="1M",
        help="of the tensor, or of reduce-scatter's output (default: 1M; the lecture has 100M)",
    )
    parser.add_argument(
        "--backends", type=several(("ring", "gloo", "nccl")), default=["ring", "gloo"]
    )
    options = parser.parse_args()
    check_backends(parser, options.backends)
    return run_on_ranks(run, options)


def run(options: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = own_device(options.backends)
    table = Table("", "backend", *(f"rank {r}" for r in range(world_size)), "busbw", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    contenders = make_contenders(options.backends, ["auto"], TIMEOUT)
    for function in (all_reduce, reduce_scatter):
        for contender in contenders:
            assert isinstance(contender, TorchContender)
            mine = torch.tensor(function(options.num_elements, device, contender.group)).double()
            every = torch.zeros(world_size, 2, dtype=torch.float64)
            ringcomm.all_gather_into_tensor(every, mine)
            figure = busbw(function.__name__, options.num_elements, contender, device)
            table.add_row(
                function.__name__,
                contender.name,
                *(f"{readable_seconds(t)}\n{rate / 1024**3:.3g}" for t, rate in every.tolist()),
                f"\n{figure / 1e9:.3g}",
            )
    if rank == 0:
        console = Console(soft_wrap=True)
        console.print(f"world_size={world_size}, num_elements={options.num_elements}, float32")
        console.print("durations, and below them bandwidths in GB/s\n")
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
