"""Times all-reduce of several ranks on one GPU: "ring" and NCCL's own, in turn in one run.

    NCCL_MULTI_RANK_GPU_ENABLE=1 python benchmarks/gpu_all_reduce.py --nproc 4 --csv times.csv

The ranks are threads of one process, so that they share a CUDA context and their kernels really run
side by side; that needs NCCL 2.30 or newer. With a GPU for each rank, `python -m ringcomm bench` is
the better tool. Every sample starts after a barrier and takes as long as the slowest rank, by the
host's clock, with the streams drained; medians and the ratio of the two are printed. Results are
checked before the samples and after them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from common import write_csv
from rich.console import Console
from rich.table import Table

from ringcomm import _C
from ringcomm.bench.options import nbytes, several
from ringcomm.cli.timing import readable_nbytes, readable_seconds

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FIELDS = ("world_size", "channels", "algorithm", "dtype", "nbytes", "ring_s", "nccl_s")
TIMEOUT = timedelta(seconds=120)
_SAMPLE_NBYTES = 1 << 24  # what a sample moves at least
_MOST_REPEATS = 50


class RankThread:
    """One rank: its two groups and its stream, on GPU 0."""

    def __init__(
        self, rank: int, options: argparse.Namespace, store: dist.Store, barrier: threading.Barrier
    ) -> None:
        torch.cuda.set_device(0)
        self.rank = rank
        self.world_size = options.nproc
        self.barrier = barrier
        self.stream = torch.cuda.Stream()
        ring = _C.create_backend(
            dist.PrefixStore("ring", store),
            rank,
            options.nproc,
            TIMEOUT,
            options.algorithm,
            options.channels,
            options.slice,
            32,
            "benchmark",
            list(range(options.nproc)),
        )
        nccl = dist.ProcessGroupNCCL(
            dist.PrefixStore("nccl", store), rank, options.nproc, dist.ProcessGroupNCCL.Options()
        )
        self.groups = {"ring": ring, "nccl": nccl}
        # The largest buffer first: nothing is allocated while a peer's kernel waits for ours.
        self.memory = torch.empty(max(options.sizes), dtype=torch.uint8, device="cuda")
        self.check(self.memory.view(torch.float32))

    def all_reduce(self, name: str, tensor: torch.Tensor) -> None:
        self.groups[name].allreduce([tensor], dist.AllreduceOptions()).wait()

    def check(self, tensor: torch.Tensor) -> None:
        """Sums small integers, of which every partial sum is exact."""
        for name in self.groups:
            with torch.cuda.stream(self.stream):
                tensor.fill_(self.rank + 1)
                self.all_reduce(name, tensor)
                expected = sum(range(1, self.world_size + 1))
                wrong = int((tensor != expected).sum())
            if wrong:
                raise RuntimeError(f"{name}: {wrong} of {tensor.numel()} elements are wrong")

    def sample(self, name: str, tensor: torch.Tensor, repeats: int) -> float:
        """Seconds of one all-reduce, on this rank."""
        with torch.cuda.stream(self.stream):
            tensor.zero_()
            self.stream.synchronize()
            self.barrier.wait()
            start = time.perf_counter()
            for _ in range(repeats):
                self.all_reduce(name, tensor)
            self.stream.synchronize()
        return (time.perf_counter() - start) / repeats

    def measure(self, dtype: torch.dtype, size: int, samples: int) -> dict[str, list[float]]:
        tensor = self.memory[:size].view(dtype)
        self.check(tensor)
        repeats = min(_MOST_REPEATS, max(1, _SAMPLE_NBYTES // size))
        taken: dict[str, list[float]] = {name: [] for name in self.groups}
        for _ in range(samples + 1):
            for name in self.groups:
                taken[name].append(self.sample(name, tensor, repeats))
        self.check(tensor)
        return {name: seconds[1:] for name, seconds in taken.items()}

    def close(self) -> None:
        for group in self.groups.values():
            group.shutdown()


def slowest(ranks: list[dict[str, list[float]]], name: str) -> float:
    """The median of what the slowest rank took."""
    return statistics.median(map(max, zip(*(rank[name] for rank in ranks), strict=True)))


def table(rows: list[dict[str, object]]) -> Table:
    result = Table("ranks", "dtype", "nbytes", "ring", "nccl", "ring / nccl", "busbw", box=None)
    for column in result.columns:
        column.justify = "right"
    for row in rows:
        n, size, ring, nccl = (row[key] for key in ("world_size", "nbytes", "ring_s", "nccl_s"))
        busbw = size / ring * 2 * (n - 1) / n / 1e9
        result.add_row(
            str(n),
            str(row["dtype"]),
            readable_nbytes(size),
            readable_seconds(ring),
            readable_seconds(nccl),
            f"{ring / nccl:.2f}",
            f"{busbw:.2f}",
        )
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ring against NCCL, with several ranks on one GPU")
    parser.add_argument("--nproc", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--sizes", default="1K,64K,1M,16M,64M,256M,1G", help="such as 1K,1M,64M")
    parser.add_argument("--dtypes", type=several(tuple(DTYPES)), default="float32,bfloat16")
    parser.add_argument("--algorithm", choices=("auto", "ring", "direct"), default="ring")
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--slice", type=nbytes, default="4M", help="RINGCOMM_SLICE_BYTES")
    parser.add_argument("--iters", type=int, default=11, help="samples (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="append the seconds to this file, too")
    parser.add_argument("--trace", type=Path, help="write a timeline of the last size to this file")
    options = parser.parse_args()
    options.sizes = [nbytes(part) for part in options.sizes.split(",")]
    if not torch.cuda.is_available():
        parser.error("needs a GPU, and torch finds none")
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        parser.error("several ranks on one GPU need NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL >= 2.30)")
    return options


def main() -> int:
    options = parse()
    store, barrier = dist.HashStore(), threading.Barrier(options.nproc)
    rows: list[dict[str, object]] = []
    with ThreadPoolExecutor(options.nproc) as threads:
        ranks = list(
            threads.map(
                lambda rank: RankThread(rank, options, store, barrier), range(options.nproc)
            )
        )
        for dtype in options.dtypes:
            for size in options.sizes:
                measured = list(
                    threads.map(
                        lambda rank, dtype=dtype, size=size: rank.measure(
                            DTYPES[dtype], size, options.iters
                        ),
                        ranks,
                    )
                )
                seconds = (slowest(measured, "ring"), slowest(measured, "nccl"))
                group = (options.nproc, options.channels, options.algorithm)
                rows.append(dict(zip(FIELDS, (*group, dtype, size, *seconds), strict=True)))
        if options.trace:
            with torch.profiler.profile() as profile:
                list(threads.map(lambda rank: rank.measure(torch.float32, size, 1), ranks))
            profile.export_chrome_trace(str(options.trace))
        list(threads.map(RankThread.close, ranks))
    Console().print(table(rows))
    if options.csv:
        write_csv(options.csv, FIELDS, rows, append=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
