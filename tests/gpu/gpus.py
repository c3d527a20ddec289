"""Ranks on GPUs: the same function on a process for each, with a GPU of its own or on one together.

Several ranks on one GPU need NCCL 2.30.3 or newer; `gpu_suite.one_gpu` says what else. With
RINGCOMM_REHEARSE=1 in the environment the tests run on the CPU, where they show that they can.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpu_suite import device, groups, one_gpu
from ranks import Rank, on_processes
from torch._C._distributed_c10d import Backend

SLICE_NBYTES = 128 << 10  # so that a few MiB make several slices
SECONDS = 35.0  # of a test's ranks: more than the groups' time-out, less than a test may take

needs_gpu = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="torch finds no GPU")

WORLD_SIZES = [2, 4, 8] if torch.cuda.device_count() >= 8 else [2, 4]


def world_sizes(*sizes: int) -> pytest.MarkDecorator:
    """Named so that -k can choose them."""
    return pytest.mark.parametrize("world_size", sizes, ids=lambda size: f"{size}ranks")


@dataclass
class Gpu:
    """One rank on its device, in a group of the ring's, and in NCCL's own where that is wanted."""

    rank: int
    world_size: int
    device: torch.device
    store: dist.Store
    algorithm: str
    ring: Backend
    nccl: Backend | None


@dataclass(frozen=True)
class Options:
    """How the ranks' groups are made."""

    settings: groups.Settings
    timeout: timedelta
    blocking: bool
    with_nccl: bool


@contextmanager
def joined(rank: Rank, options: Options) -> Iterator[Gpu]:
    """Makes the groups, and all connections that a first use would make later."""
    # Where fused kernels are tested, it is a failure that messages went in their place.
    warnings.filterwarnings("error", "ring: RINGCOMM_EXECUTOR=fused")
    if options.blocking:
        os.environ["RINGCOMM_BLOCKING_WAIT"] = "1"
    own = device.own(rank.rank)
    members = (rank.rank, rank.world_size)
    ring = groups.ring(rank.store, *members, options.settings, options.timeout)
    nccl = None
    if options.with_nccl:
        nccl = groups.nccl(rank.store, *members, options.settings.ctas)
    backends = [backend for backend in (ring, nccl) if backend]
    with torch.cuda.stream(torch.cuda.Stream(own)):
        for backend in backends:
            for nbytes in (1, 8 << 20):
                backend.allreduce([torch.ones(nbytes, dtype=torch.uint8, device=own)]).wait()
        torch.cuda.current_stream().synchronize()
        yield Gpu(*members, own, rank.store, options.settings.algorithm, ring, nccl)
        torch.cuda.current_stream().synchronize()
    for backend in backends:
        backend.shutdown()


def _rank_main(rank: Rank, function: Callable[[Gpu], Any], options: Options) -> Any:
    with joined(rank, options) as gpu:
        return function(gpu)


def require(world_size: int) -> None:
    """Skips the test where so many ranks cannot run."""
    if reason := one_gpu.missing(world_size):
        pytest.skip(reason)


def on_gpus(
    function: Callable[[Gpu], Any],
    world_size: int,
    algorithm: str = "auto",
    channels: int = 4,
    timeout: timedelta = groups.TIMEOUT,
    blocking: bool = True,
    with_nccl: bool = False,
    executor: str = "messages",
) -> list[Any]:
    """Calls function(Gpu) as every rank; the function can be pickled.

    Args:
        blocking: the ring's wait() waits on the host, so that it raises what the watchdog finds.
        with_nccl: whether there is a group of NCCL's own, too.
    """
    require(world_size)
    settings = groups.Settings(
        one_gpu.ctas(world_size), algorithm, channels, SLICE_NBYTES, executor
    )
    options = Options(settings, timeout, blocking, with_nccl)
    return on_processes(_rank_main, world_size, function, options, timeout=SECONDS)
