"""Records all-reduces over the ring as a trace for Perfetto or chrome://tracing.

    python benchmarks/profile/trace.py --nproc 4 --size 4M -o ring.json

One file for all ranks, each a process of its own in the picture, on one time axis. In each
"ring:all_reduce" lie the spans "step S slice K": the work on slice K that step S of the plan
receives (or, in the first step, sends). Gaps between them are waits for other ranks. Buffers of a
few KiB are exchanged at once and have no steps.

Open the file at https://ui.perfetto.dev, which keeps it on your machine. It needs no GPU; with
--device cuda, kernels and streams are in it, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for common.py and gpu_suite

import torch
import torch.distributed as dist
from common import TIMEOUT, run_on_ranks
from gpu_suite import device, groups, one_gpu
from torch.profiler import ProfilerActivity, profile

import ringcomm
from ringcomm.arguments import nbytes, number
from ringcomm.plan.algorithms import ALGORITHMS


def all_reduces(tensor: torch.Tensor, options: argparse.Namespace, iters: int) -> None:
    for _ in range(iters):
        dist.all_reduce(tensor)
    if options.device == "cuda":
        torch.cuda.synchronize()


def record(tensor: torch.Tensor, options: argparse.Namespace) -> list[dict[str, object]]:
    """The trace events of this rank, its rank in place of the process id."""
    activities = [ProfilerActivity.CPU]
    if tensor.is_cuda:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        ringcomm.barrier()
        all_reduces(tensor, options, options.iters)
    rank = dist.get_rank()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        document = json.loads(Path(file.name).read_text())
    base = document.get("baseTimeNanoseconds", 0) / 1e3  # µs, from which the events count
    own_pid = os.getpid()
    events = []
    for event in document["traceEvents"]:
        if event.get("ph") == "M" or not isinstance(event.get("pid"), int):
            continue
        if "ts" in event:
            event["ts"] += base
        event["pid"] = rank if event["pid"] == own_pid else f"rank {rank}, GPU {event['pid']}"
        events.append(event)
    names = {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    return [names, *events]


def run(options: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
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
    every: list[object] = [None] * world_size
    dist.all_gather_object(every, record(tensor, options))
    if rank == 0:
        events = [event for events in every for event in events]
        start = min(event["ts"] for event in events if "ts" in event)
        for event in events:
            if "ts" in event:
                event["ts"] -= start
        where = device.label() if options.device == "cuda" else "CPU"
        document = {"traceEvents": events, "otherData": {"device": where}}
        options.output.write_text(json.dumps(document))
        steps = {event["name"] for event in events if str(event["name"]).startswith("step ")}
        print(f"wrote {options.output}: {world_size} ranks, {len(steps)} steps and slices")
        print("open it at https://ui.perfetto.dev")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument("-o", "--output", type=Path, default=Path("ring.json"))
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
