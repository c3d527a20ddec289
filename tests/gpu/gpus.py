"""Ranks on GPUs: the same function on threads that share one GPU, or on a process for each GPU.

Several NCCL ranks on one GPU need NCCL 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1 in the
environment, from the start. As threads of one process they share a CUDA context, so that their
kernels really run side by side; `benchmarks/gpu_suite.sh` sets what that takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes, on_threads
from torch.distributed import PrefixStore

from ringcomm import _C

TIMEOUT = timedelta(seconds=120)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible")


def shares_gpu() -> bool:
    """Whether several ranks can be on one GPU."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


@dataclass
class Gpu:
    """One rank on its device, in two groups of the same ranks: the ring's and NCCL's own."""

    rank: int
    world_size: int
    device: torch.device
    algorithm: str
    ring: Any
    nccl: Any


@contextmanager
def joined(rank: Rank, index: int, algorithm: str, channels: int) -> Iterator[Gpu]:
    """Makes the groups, and all connections that a first use would make later."""
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    name = f"{algorithm} {channels}"
    ring = _C.create_backend(
        PrefixStore(f"ring {name}", rank.store),
        rank.rank,
        rank.world_size,
        TIMEOUT,
        algorithm,
        channels,
        4 << 20,
        32,
        name,
        list(range(rank.world_size)),
    )
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    store = PrefixStore(f"nccl {name}", rank.store)
    nccl = dist.ProcessGroupNCCL(store, rank.rank, rank.world_size, options)
    # A stream of its own, as threads share the default one.
    with torch.cuda.stream(torch.cuda.Stream(device)):
        for backend in (ring, nccl):
            for nbytes in (1, 8 << 20):
                backend.allreduce([torch.ones(nbytes, dtype=torch.uint8, device=device)]).wait()
        torch.cuda.current_stream().synchronize()
        yield Gpu(rank.rank, rank.world_size, device, algorithm, ring, nccl)
        torch.cuda.current_stream().synchronize()
    ring.shutdown()
    nccl.shutdown()


def _on_one_gpu(rank: Rank, function: Callable[..., Any], *arguments: Any, **group: Any) -> Any:
    with joined(rank, 0, **group) as gpu:
        return function(gpu, *arguments)


def _on_its_gpu(rank: Rank, function: Callable[..., Any], group: Any, *arguments: Any) -> Any:
    with joined(rank, rank.rank, **group) as gpu:
        return function(gpu, *arguments)


def on_gpus(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    algorithm: str = "auto",
    channels: int = 4,
    timeout: float = 300,
) -> list[Any]:
    """Calls function(Gpu, *arguments) as every rank; skips the test where there is no room."""
    group = {"algorithm": algorithm, "channels": channels}
    if torch.cuda.device_count() >= world_size:
        return on_processes(_on_its_gpu, world_size, function, group, *arguments, timeout=timeout)
    if not shares_gpu():
        pytest.skip(f"needs {world_size} GPUs, or NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1")
    return on_threads(
        lambda rank: _on_one_gpu(rank, function, *arguments, **group), world_size, timeout=timeout
    )
