"""Calls that skip torch.distributed's dispatcher, where nothing watches: csrc/torch/fast_path.cpp.

`try_..._sync` return False, with nothing done, where torch.distributed has to carry out a call.
"""

from __future__ import annotations

import functools
import weakref
from typing import cast

import torch
import torch.distributed.distributed_c10d as c10d
from torch.distributed import ProcessGroup, ReduceOp

from ringcomm import _C

# An attribute would cost a tenth of what a small call does. Compiled code does not come here.
is_compiling = torch.compiler.is_dynamo_compiling


def try_barrier_sync(group: ProcessGroup | None) -> bool:
    """barrier(group), which does not wait for a device if there is none."""
    return not has_devices() and _C.try_barrier_sync(group)


_CPU = torch.device("cpu")
_remembered: set[int] = set()


# Not before it has to be known: after it has looked, a process that is forked finds no device.
@functools.cache
def has_devices() -> bool:
    return torch.accelerator.is_available()


_C.watch_groups(vars(c10d), ReduceOp.RedOpType)


def remember(group: ProcessGroup | None, ring: object) -> bool:
    """From now on, calls of `group` may be fast. False: nothing has changed.

    Args:
        group: the default group if None.
        ring: what `ring_group` says of it.
    """
    known = cast(ProcessGroup, c10d._world.default_pg if group is None else group)
    if not isinstance(ring, ProcessGroup) or id(known) in _remembered:
        return False
    try:
        _C.remember_group(known, ring._get_backend(_CPU))
    except MemoryError:  # the call can be made all the same, and other ranks wait for it
        return False
    _remembered.add(id(known))
    weakref.finalize(known, _forget, id(known)).atexit = False
    return True


def _forget(group: int) -> None:
    _remembered.discard(group)
    _C.forget_group(group)
