"""Times all-reduce of several ranks on one GPU: "ring" and NCCL's own, in turn in one run.

    python benchmarks/gpu_all_reduce.py --nproc 4 --csv times.csv

The ranks are processes, side by side under MPS where that can be had, else time-sliced; that needs
NCCL 2.30.3 or newer. With a GPU for each rank, `python -m ringcomm bench` is the better tool.

Both sides get as many CTAs, by their communicators' settings: of a ring, shared by its channels.
With --nccl-defaults NCCL takes what it thinks best.
Every sample starts after a barrier, calls all_reduce in a loop in C++, and takes as long as the
slowest rank by the host's clock, with the stream drained. Columns are those of nccl-tests: seconds
are medians, algbw is nbytes over seconds, busbw that times 2(n-1)/n, in GB/s of 1e9 bytes, and
wrong counts elements before and after the samples. "calls" is what the calls to CUDA and NCCL for a
ring of messages are estimated to cost the host (ringcomm.cost.device_calls), which is about the
least that it can take. A row is in the CSV as soon as it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import torch
import torch.distributed as dist
from common import tools, write_csv
from gpu_suite import device, groups, mps, one_gpu
from rich.console import Console
from rich.table import Table
from torch._C._distributed_c10d import Backend
from torch.distributed import ReduceOp

from ringcomm.arguments import nbytes, number, several
from ringcomm.cost import DeviceLayout, device_calls
from ringcomm.groups import launched
from ringcomm.launch import RanksFailedError, run_ranks
from ringcomm.options import Options
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import Parser

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIDES = ("ring", "nccl")
EXECUTORS = ("messages", "fused")
FIELDS = (
    *("date", "gpu", "torch", "nccl_version", "sharing", "world_size", "ctas"),
    *(
        "algorithm",
        "executor",
        "channels",
        "slice_nbytes",
        "dtype",
        "op",
        "nbytes",
        "count",
        "samples",
    ),
    *(f"{side}_{column}" for side in SIDES for column in ("s", "algbw", "busbw", "wrong")),
    "ring_estimated_calls_s",
    "nccl_ctas",
)
_SAMPLE_NBYTES = 1 << 24  # what a sample moves at least
_MOST_REPEATS = 20  # all launches of a sample fit the queues
_CASE_SECONDS = 6.0  # after which no more samples are taken, if there are three


class RankMain:
    """One rank: NCCL's group, the ring under test, and gloo for what they have to agree on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = device.own(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo", timeout=groups.TIMEOUT)
        self.store = dist.distributed_c10d._get_default_store()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.nccl = groups.nccl(
            self.store, self.rank, self.world_size, None if options.nccl_defaults else options.ctas
        )
        self.ring: Backend | None = None
        # One allocation, as each may wait for what runs on the device.
        self.memory = torch.empty(max(options.sizes), dtype=torch.uint8, device=self.device)
        self.deadline = time.monotonic() + options.seconds

    def out_of_time(self) -> bool:
        """The same answer on all ranks."""
        late = torch.tensor([time.monotonic() > self.deadline])
        dist.broadcast(late, 0)
        return bool(late)

    def wrong(self, group: Backend, tensor: torch.Tensor) -> int:
        """Sums small integers, of which every partial sum is exact; counts what differs, over all.

        The values depend on the place, so that nothing goes unseen that ends up in another one.
        """
        pattern = torch.arange(tensor.numel(), dtype=torch.int32, device=self.device).remainder_(7)
        tensor.copy_(pattern + self.rank)
        tools().repeat_all_reduce(group, tensor, ReduceOp.SUM, 1)
        torch.cuda.synchronize()
        n = self.world_size
        found = (tensor != (pattern * n + n * (n - 1) // 2).to(tensor.dtype)).sum().cpu()
        dist.all_reduce(found)
        return int(found)

    def sample(self, group: Backend, tensor: torch.Tensor, repeats: int) -> float:
        """Seconds of one all-reduce, on the slowest rank."""
        tensor.uniform_(-1, 1)
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        tools().repeat_all_reduce(group, tensor, ReduceOp.SUM, repeats)
        torch.cuda.synchronize()
        seconds = torch.tensor([(time.perf_counter() - start) / repeats], dtype=torch.float64)
        dist.all_reduce(seconds, ReduceOp.MAX)
        return seconds.item()

    def measure(self, dtype: torch.dtype, size: int) -> dict[str, object]:
        """The columns of both sides."""
        tensor = self.memory[:size].view(dtype)
        sides = dict(zip(SIDES, (self.ring, self.nccl), strict=True))
        repeats = min(_MOST_REPEATS, max(1, _SAMPLE_NBYTES // size))
        wrong = {side: self.wrong(group, tensor) for side, group in sides.items()}
        taken: dict[str, list[float]] = {side: [] for side in SIDES}
        for number_of_samples in range(self.options.iters + 1):
            spent = repeats * sum(map(sum, taken.values()))
            if number_of_samples > 3 and spent > _CASE_SECONDS:
                break
            for side, group in sides.items():
                taken[side].append(self.sample(group, tensor, repeats))
        row: dict[str, object] = {"samples": len(taken["ring"]) - 1}
        for side, group in sides.items():
            seconds = statistics.median(taken[side][1:])
            algbw = size / seconds / 1e9
            row[f"{side}_s"] = seconds
            row[f"{side}_algbw"] = algbw
            row[f"{side}_busbw"] = algbw * 2 * (self.world_size - 1) / self.world_size
            row[f"{side}_wrong"] = wrong[side] + self.wrong(group, tensor)
        return row

    def calls_seconds(self, dtype: str, settings: groups.Settings, size: int) -> float | None:
        """What the ring's calls should cost the host; not of a fused kernel, which is one."""
        options = self.options
        if settings.executor == "fused":
            return None
        return device_calls(
            "all_reduce",
            options.algorithm,
            self.world_size,
            size,
            dtype=DTYPES[dtype],
            layout=DeviceLayout(settings.channels, options.slice),
        ).host_seconds

    def settings(self) -> Iterator[groups.Settings]:
        """What is measured. Fused kernels know no channels."""
        options = self.options
        for executor in options.executors:
            for channels in options.channels if executor == "messages" else [Options.channels]:
                yield groups.Settings(
                    options.ctas, options.algorithm, channels, options.slice, executor
                )

    def run(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        options = self.options
        for settings in self.settings():
            self.ring = groups.ring(self.store, self.rank, self.world_size, settings)
            for dtype in options.dtypes:
                for size in options.sizes:
                    if self.out_of_time():
                        if self.rank == 0:
                            print(f"no time left for {settings}, {dtype}, {size} bytes")
                        continue
                    row = {
                        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                        "gpu": device.label(),
                        "torch": torch.__version__,
                        "nccl_version": device.nccl_version(),
                        "sharing": mps.how(),
                        "world_size": self.world_size,
                        "ctas": options.ctas,
                        "algorithm": options.algorithm,
                        "executor": settings.executor,
                        "channels": settings.channels,
                        "slice_nbytes": options.slice,
                        "dtype": dtype,
                        "op": "sum",
                        "nbytes": size,
                        "count": size // DTYPES[dtype].itemsize,
                        **self.measure(DTYPES[dtype], size),
                        "ring_estimated_calls_s": self.calls_seconds(dtype, settings, size),
                        "nccl_ctas": "default" if options.nccl_defaults else options.ctas,
                    }
                    rows.append(row)
                    if self.rank == 0 and options.csv:
                        write_csv(options.csv, FIELDS, [row], append=True)
            self.ring.shutdown()
        self.nccl.shutdown()
        dist.destroy_process_group()
        return rows


def table(rows: list[dict[str, object]]) -> Table:
    names = ("ranks", "CTAs", "executor", "channels", "dtype", "nbytes")
    sides = [f"{side}\n{name}" for side in SIDES for name in ("time", "busbw", "wrong")]
    result = Table(*names, *sides, "ring / nccl", "calls,\nestimated", box=None)
    for column in result.columns:
        column.justify = "right"
    for row in rows:
        cells = [row[key] for key in ("world_size", "ctas", "executor", "channels", "dtype")]
        cells.append(readable_nbytes(row["nbytes"]))
        for side in SIDES:
            seconds, busbw, wrong = (row[f"{side}_{key}"] for key in ("s", "busbw", "wrong"))
            cells += [readable_seconds(seconds), f"{busbw:.2f}", wrong]
        cells.append(f"{row['ring_s'] / row['nccl_s']:.2f}")
        calls = row["ring_estimated_calls_s"]
        result.add_row(*map(str, cells), readable_seconds(calls) if calls is not None else "")
    return result


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(2), default=2, help="ranks (default: %(default)s)")
    parser.add_argument(
        "--sizes", default="1K,16K,256K,1M,4M,16M,64M,256M,1G", help="of the tensor"
    )
    parser.add_argument("--dtypes", type=several(tuple(DTYPES)), default="float32,bfloat16")
    parser.add_argument("--algorithm", choices=("auto", *ALGORITHMS["all_reduce"]), default="auto")
    parser.add_argument("--executors", type=several(EXECUTORS), default="messages,fused")
    parser.add_argument(
        "--channels", default=str(Options.channels), help="numbers of them, such as 1,2,4"
    )
    parser.add_argument("--slice", type=nbytes, default=Options.slice_nbytes, help="bytes")
    parser.add_argument("--ctas", type=number(1), help="of each rank (default: 64 / ranks)")
    parser.add_argument(
        "--nccl-defaults", action="store_true", help="NCCL has its default settings, not --ctas"
    )
    parser.add_argument("--iters", type=number(1), default=9, help="samples (default: 9)")
    parser.add_argument("--seconds", type=float, default=600, help="after which no case is begun")
    parser.add_argument("--no-mps", action="store_true", help="time-sliced, also where MPS runs")
    parser.add_argument("--csv", type=Path, help="append the figures to this file, too")
    options = parser.parse_args()
    options.sizes = [nbytes(part) for part in options.sizes.split(",")]
    options.channels = [number(1)(part) for part in options.channels.split(",")]
    options.ctas = options.ctas or one_gpu.ctas(options.nproc)
    if problem := one_gpu.missing(options.nproc):
        parser.error(problem)
    if "NCCL_MAX_CTAS" in os.environ:
        parser.error("NCCL_MAX_CTAS overrides the settings of both sides; use --ctas")
    return options


def main() -> int:
    options = parse()
    if launched():
        rows = RankMain(options).run()
        if os.environ["RANK"] == "0":
            print(f"{device.label()}; {mps.how()}")
            Console(width=140).print(table(rows))
        return int(any(row[f"{side}_wrong"] for row in rows for side in SIDES))
    one_gpu.prepare(options.nproc)
    try:
        with contextlib.nullcontext("not wanted") if options.no_mps else mps.running() as problem:
            print(f"MPS: {problem or 'runs'}", flush=True)
            run_ranks(sys.argv, options.nproc)
    except RanksFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
