"""The torch.distributed backend "ring": what `import ringcomm` registers."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from ringcomm import _C

ALGORITHMS = ("auto", "ring", "direct")

# On CUDA devices; see the README's table of environment variables.
DEFAULT_CHANNELS = _C.streams.Layout().num_channels
DEFAULT_SLICE_NBYTES = _C.streams.Layout().slice_nbytes
DEFAULT_MAX_CTAS = 32


def _algorithm() -> str:
    """RINGCOMM_ALGORITHM, or "auto"."""
    algorithm = os.environ.get("RINGCOMM_ALGORITHM", "auto")
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"RINGCOMM_ALGORITHM is {algorithm!r}; it must be one of {', '.join(ALGORITHMS)}"
        )
    return algorithm


def _positive(name: str, default: int) -> int:
    """An environment variable that holds a positive integer, or its default."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name} is {text!r}; it must be a positive integer")
    return int(text)


def _switch(name: str) -> bool:
    """An environment variable that is 0, the default, or 1."""
    text = os.environ.get(name, "0")
    if text not in ("0", "1"):
        raise ValueError(f"{name} is {text!r}; it must be 0 or 1")
    return text == "1"


def _create(options: Any, pg_options: Any) -> Any:
    """Makes one rank's backend; torch calls it on every rank of a new group.

    Args:
        options: torch's ``_DistributedBackendOptions``: store, rank, size, timeout, name and
            members of the group.
        pg_options: what the user passed as ``pg_options``; "ring" has none.
    """
    if pg_options is not None:
        raise ValueError(f'the backend "ring" takes no pg_options, got {pg_options!r}')
    timeout = options.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    # A store may outlive the groups that meet in it, as torchrun's does; no group is to read what
    # an earlier one of the same name wrote.
    attempt = options.store.add(f"attempts of rank {options.group_rank}", 1)
    return _C.create_backend(
        PrefixStore(f"attempt {attempt}", options.store),
        options.group_rank,
        options.group_size,
        timedelta(milliseconds=math.ceil(seconds * 1000)),
        _algorithm(),
        _positive("RINGCOMM_CHANNELS", DEFAULT_CHANNELS),
        _positive("RINGCOMM_SLICE_BYTES", DEFAULT_SLICE_NBYTES),
        _positive("RINGCOMM_MAX_CTAS", DEFAULT_MAX_CTAS),
        options.group_id,
        options.global_ranks_in_group,
        _switch("RINGCOMM_GRAPHS"),
    )


def register() -> None:
    """Makes "ring" known to torch.distributed, for CPU and CUDA tensors."""
    if "ring" not in dist.Backend.backend_list:
        dist.Backend.register_backend("ring", _create, extended_api=True, devices=["cpu", "cuda"])
