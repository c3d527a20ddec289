"""Tensors in memory that the other ranks of the host can reach.

A collective on such tensors copies nothing into shared memory and out of it: each rank reads and
writes the tensors of the others right where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ringcomm import _C


@contextmanager
def shared_memory() -> Iterator[None]:
    """Within this block, tensors that the calling thread makes on the CPU can be reached by peers.

    It does not matter what makes the tensors. The block may be around the construction of a model,
    or of DDP or FSDP, whose buckets and shards then lie there, or around the whole training. Blocks
    can be nested, and it decorates functions too. Where the memory cannot be had, tensors are made
    as ever.

    All ranks' collectives go without a copy where what they read of each other lies in such memory
    on every rank, which they find out in the first call; see the guide's page on shared memory.

    Two things differ from other tensors. After `fork()` parent and child have the same memory, as
    with `torch.Tensor.share_memory_`. And after a time-out a rank that was late may still write to
    the tensors of that call.

    Raises:
        RuntimeError: another library has replaced torch's allocator for good.
    """
    _C.begin_shared_memory()
    try:
        yield
    finally:
        _C.end_shared_memory()


def empty(*size: int | Sequence[int], **options: Any) -> torch.Tensor:
    """`torch.empty` in memory that the other ranks of the host can reach.

    Args:
        size: the shape, as integers or one sequence.
        options: torch.empty's, such as `dtype`. A `device` must be the CPU.

    Returns:
        A tensor whose elements are anything, as those of torch.empty.

    Raises:
        ValueError: another device than the CPU.
        MemoryError: such memory cannot be had.
    """
    device = torch.device(options.get("device") or "cpu")
    if device.type != "cpu":
        raise ValueError(f"ringcomm.empty makes tensors on the CPU, got device={device}")
    shape: Any = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    with shared_memory():
        tensor: torch.Tensor = torch.empty(shape, **{**options, "device": device})
    if tensor.nbytes > 0 and not _C.is_shared(tensor):
        raise MemoryError(
            f"ringcomm.empty: no shared memory for a tensor of {tensor.nbytes} bytes: there is "
            "room for as many as the machine has memory, if memfd_create is allowed here"
        )
    return tensor


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in memory of this process that the other ranks can reach."""
    return _C.is_shared(tensor)
