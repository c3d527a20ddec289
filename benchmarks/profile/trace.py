"""Records all-reduces over the ring on GPUs as a trace for Perfetto, or marks them for Nsight.

    python benchmarks/profile/trace.py --nproc 4 --size 4M -o ring.json

It is `python -m ringcomm trace` with a choice of device: with --device cuda, kernels and streams
are in the trace, too. That needs a GPU, which the ranks may share.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for common.py and gpu_suite

import torch
import torch.distributed as dist
from common import TIMEOUT, run_on_ranks
from gpu_suite import device, groups, one_gpu

from ringcomm.arguments import nbytes, number
from ringcomm.cli.trace import trace_file
from ringcomm.cli.trace_rank import record, write
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.usage import Parser


def all_reduces(tensor: torch.Tensor, options: argparse.Namespace, iters: int) -> None:
    for _ in range(iters):
        dist.all_reduce(tensor)
    if options.device == "cuda":
        torch.cuda.synchronize()


def run(options: argparse.Namespace) -> None:
    rank = dist.get_rank()
    own = device.own(rank) if options.device == "cuda" else torch.device("cpu")
    tensor = torch.zeros(max(1, options.size // 4), device=own)
    all_reduces(tensor, options, 3)  # warm-up
    if options.nsys:
        torch.cuda.profiler.start()
        # The ranges of the GPU's executor are NVTX's own; those of the CPU's are torch's.
        with torch.autograd.profiler.emit_nvtx(enabled=not tensor.is_cuda):
            all_reduces(tensor, options, options.iters)
        torch.cuda.profiler.stop()
        return
    mine = record(lambda: all_reduces(tensor, options, options.iters), cuda=tensor.is_cuda)
    write(mine, options.output, device.label() if options.device == "cuda" else "CPU")


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(1), default=4, help="ranks (default: %(default)s)")
    parser.add_argument("--size", type=nbytes, default="4M", help="of the tensor (default: 4M)")
    parser.add_argument("--iters", type=number(1), default=3, help="all-reduces (default: 3)")
    parser.add_argument(
        "--algorithm",
        choices=("auto", *ALGORITHMS["all_reduce"]),
        default="ring",
        help="(default: ring)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("-o", "--output", type=trace_file, default="ring.json")
    parser.add_argument(
        "--nsys",
        action="store_true",
        help="write nothing, but mark the ranges for Nsight Systems (nsys_ring.sh starts this)",
    )
    options = parser.parse_args()
    timeout = TIMEOUT
    if options.device == "cuda":
        if problem := one_gpu.missing(options.nproc):
            parser.error(f"--device cuda: {problem}")
        one_gpu.prepare(options.nproc)
        timeout = groups.TIMEOUT
    if options.nsys and torch.cuda.device_count() == 0:
        parser.error("--nsys needs a GPU, and torch finds none")
    os.environ["RINGCOMM_ALGORITHM"] = options.algorithm
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each rank reports that it has no GPU
    return run_on_ranks(run, options, timeout)


if __name__ == "__main__":
    sys.exit(main())
