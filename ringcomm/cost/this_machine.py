"""What this machine attains: operations per second, and a link as its ring behaves.

As `python -m ringcomm.cost.this_machine FILE` it is one of the ranks that measure.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch

import ringcomm
from ringcomm.bench.timing import median_seconds
from ringcomm.cost import Machine
from ringcomm.launch import run_ranks
from ringcomm.plan import Link

_MATRIX = 1024  # rows and columns, of float32
_SMALL, _LARGE = 1 << 18, 1 << 25  # bytes, both beyond what is exchanged at once


def this_machine() -> Machine:
    """Measures with one rank per core, all at work at once, in float32.

    Bandwidth and latency are those with which 2(n-1) latency + 2(n-1)/n * nbytes / bandwidth is
    the time of a ring all-reduce of 256 KiB and of 32 MiB.

    Raises:
        RanksFailedError: a rank failed; it has said why.
    """
    world_size = max(2, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measured.json"
        run_ranks(["-m", "ringcomm.cost.this_machine", str(file)], world_size, timeout=120)
        measured = json.loads(file.read_text())
    link = Link(measured["latency"], measured["bandwidth"])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / world_size
    return Machine(measured["flops"], memory, link, link, world_size, element_nbytes=4)


def _measure(file: Path) -> None:
    os.environ["RINGCOMM_ALGORITHM"] = "ring"
    torch.set_num_threads(1)
    ringcomm.init(timedelta(seconds=60))
    n = ringcomm.get_world_size()
    flops = torch.tensor([_flops()])
    ringcomm.all_reduce(flops, ringcomm.ReduceOp.MIN)
    small, large = (
        median_seconds({"ring": ringcomm.all_reduce}, nbytes, samples=7)["ring"]
        for nbytes in (_SMALL, _LARGE)
    )
    volume = 2 * (n - 1) / n
    # On a machine that is busy with much else, a small call may take as long as a large one.
    bandwidth = volume * (_LARGE - _SMALL) / max(large - small, large / 2)
    latency = max(0.0, small - volume * _SMALL / bandwidth) / (2 * (n - 1))
    if ringcomm.get_rank() == 0:
        result = {"flops": flops.item(), "bandwidth": bandwidth, "latency": latency}
        file.write_text(json.dumps(result))
    ringcomm.destroy_process_group()


def _flops() -> float:
    left, right = torch.rand(2, _MATRIX, _MATRIX)
    samples = []
    for _ in range(7):
        ringcomm.barrier()
        start = time.perf_counter()
        torch.mm(left, right)
        samples.append(time.perf_counter() - start)
    return 2 * _MATRIX**3 / sorted(samples[1:])[3]


if __name__ == "__main__":
    _measure(Path(sys.argv[1]))
