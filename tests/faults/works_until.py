"""A rank that works until something is wrong, and prints the error that it got, and when."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from hosts.report import report

import ringcomm  # noqa: F401

SIZES = (1, 1_000, 100_000, 1_000_000)  # elements
PATIENCE = timedelta(minutes=5)  # so long that an error in time did not come from a time-out


def held() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared": len(os.listdir("/dev/shm")),
    }


def main() -> None:
    said: dict[str, Any] = {}
    dist.init_process_group("ring", timeout=PATIENCE)
    tensors = [torch.ones(size) for size in SIZES]
    calls = 0
    try:
        while True:
            for tensor in tensors:
                dist.all_reduce(tensor.fill_(1.0))
                calls += 1
            if calls == 2 * len(tensors):
                report("works")
    except dist.DistBackendError as error:
        said = {"at": time.monotonic(), "text": str(error)}
    dist.destroy_process_group()
    report({**said, "left_at": time.monotonic(), **held()})


main()
