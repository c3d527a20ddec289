"""Calls that skip torch.distributed's dispatcher, where nothing watches: csrc/torch/fast_path.h."""

from __future__ import annotations

import weakref
from typing import cast

import torch
import torch.distributed.distributed_c10d as c10d
from torch.distributed import ProcessGroup, ReduceOp

from ringcomm import _C
from ringcomm.groups import ring_group

all_reduce_now = _C.all_reduce_now

_CPU = torch.device("cpu")
_remembered: set[int] = set()

_C.watch_groups(vars(c10d), ReduceOp.RedOpType)


def remember(group: ProcessGroup | None) -> bool:
    """From now on, calls of `group` may be fast. False: nothing has changed.

    Raises:
        TypeError, ValueError: as `ring_group`.
    """
    ring = ring_group(group)
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
