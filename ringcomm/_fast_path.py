"""Calls that skip torch.distributed's dispatcher, where nothing watches: csrc/torch/fast_path.h.

Each function returns False, with nothing done, where torch.distributed has to carry out the call.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed.distributed_c10d as c10d
from torch.distributed import ProcessGroup, ReduceOp

from ringcomm import _C

Now = Callable[..., bool]

# An attribute would cost a tenth of what a small call does. Whoever is compiled does not come here.
is_compiling = torch.compiler.is_dynamo_compiling
_SUM = ReduceOp.SUM

all_reduce_now = _C.all_reduce_now


def reduce_scatter_now(
    *args: Any, op: Any = _SUM, group: Any = None, async_op: bool = False, **others: Any
) -> bool:
    """reduce_scatter_tensor(output, input, op, group)."""
    if async_op or others:
        return False
    if len(args) == 2:
        return _C.reduce_scatter_now(*args, op, group)
    if len(args) == 3:
        return _C.reduce_scatter_now(*args, group)
    return len(args) == 4 and _C.reduce_scatter_now(*args)


def all_gather_now(*args: Any, group: Any = None, async_op: bool = False, **others: Any) -> bool:
    """all_gather_into_tensor(output, input, group)."""
    if async_op or others:
        return False
    if len(args) == 2:
        return _C.all_gather_now(*args, group)
    return len(args) == 3 and _C.all_gather_now(*args)


def broadcast_now(
    *args: Any, src: Any = None, group: Any = None, async_op: bool = False, **others: Any
) -> bool:
    """broadcast(tensor, src, group)."""
    if async_op or others:
        return False
    if len(args) == 1:
        return _C.broadcast_now(*args, src, group)
    if len(args) == 2:
        return _C.broadcast_now(*args, group)
    return len(args) == 3 and _C.broadcast_now(*args)


def reduce_now(
    *args: Any,
    dst: Any = None,
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    **others: Any,
) -> bool:
    """reduce(tensor, dst, op, group)."""
    if async_op or others:
        return False
    if len(args) == 1:
        return _C.reduce_now(*args, dst, op, group)
    if len(args) == 2:
        return _C.reduce_now(*args, op, group)
    if len(args) == 3:
        return _C.reduce_now(*args, group)
    return len(args) == 4 and _C.reduce_now(*args)


def all_to_all_now(*args: Any, group: Any = None, async_op: bool = False, **others: Any) -> bool:
    """all_to_all_single(output, input, group=group), in equal parts."""
    if async_op or others or len(args) != 2:
        return False
    return _C.all_to_all_now(*args, group)


def barrier_now(group: Any = None, async_op: bool = False, **others: Any) -> bool:
    """barrier(group), which does not wait for a device if there is none."""
    if async_op or others or _has_devices():
        return False
    return _C.barrier_now(group)


_CPU = torch.device("cpu")
_remembered: set[int] = set()


# Not before it has to be known: after it has looked, a process that is forked finds no device.
@functools.cache
def _has_devices() -> bool:
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
    _C.remember_group(known, ring._get_backend(_CPU))
    _remembered.add(id(known))
    weakref.finalize(known, _forget, id(known)).atexit = False
    return True


def _forget(group: int) -> None:
    _remembered.discard(group)
    _C.forget_group(group)
