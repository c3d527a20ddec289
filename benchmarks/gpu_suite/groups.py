"""A rank's two groups: the ring's, and NCCL's own with as many CTAs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import PrefixStore, Store

from ringcomm import _C
from ringcomm.options import Options, choices

# Below every limit of a test or a phase, so that the watchdog says what is wrong before they end.
TIMEOUT = timedelta(seconds=15)


@dataclass(frozen=True)
class Settings:
    """How a ring does it; `ctas` is for NCCL's own group, too."""

    ctas: int
    algorithm: str = "auto"
    channels: int = Options.channels
    slice_nbytes: int = Options.slice_nbytes
    executor: str = "messages"


def ring(
    store: Store, rank: int, world_size: int, settings: Settings, timeout: timedelta = TIMEOUT
) -> Backend:
    name = f"ring {settings.algorithm} {settings.channels} {settings.executor}"
    return _C.create_backend(
        store=PrefixStore(name, store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        algorithms=choices(Options(settings.algorithm)),
        host_of=[],
        num_channels=settings.channels,
        slice_nbytes=settings.slice_nbytes,
        max_ctas=settings.ctas,
        group_name=name,
        global_ranks=list(range(world_size)),
        executor=settings.executor,
        async_errors="raise",  # for the tests of time-outs
    )


def nccl(store: Store, rank: int, world_size: int, ctas: int | None) -> Backend:
    """With at most so many CTAs, or by NCCL's default settings."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    if ctas is not None:
        options.config.max_ctas = ctas
    return dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, world_size, options)
