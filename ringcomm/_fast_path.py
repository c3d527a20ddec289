"""all_reduce without torch.distributed's dispatcher, for calls that nothing watches."""

from __future__ import annotations

import weakref
from typing import cast

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend
from torch.distributed import ProcessGroup, ReduceOp

from ringcomm import _C
from ringcomm.groups import ring_group

# Each lookup of an attribute would cost a tenth of what the call costs.
_Tensor = torch.Tensor
_RedOpType = ReduceOp.RedOpType
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_profiler_enabled = torch._C._autograd._profiler_enabled
_len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
_all_reduce_now = _C.all_reduce_now

# By id of the group: a lookup in a WeakKeyDictionary would take as long as the rest of the call.
_backends: dict[int, Backend] = {}


def all_reduce_now(
    tensor: torch.Tensor, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | None
) -> bool:
    """all_reduce in place; False, with nothing done, if torch.distributed has to do it.

    It has to if the call is to be recorded (a profiler, a dispatch mode, coalescing), if the tensor
    is of a subclass, not on the CPU or not contiguous, if the op carries a factor, or if operations
    are under way.
    """
    if (
        _is_dynamo_compiling()
        or type(tensor) is not _Tensor
        or type(op) is not _RedOpType
        or not tensor.is_cpu
        or _profiler_enabled()
        or _len_torch_dispatch_stack()
    ):
        return False
    world = c10d._world
    if world.pg_coalesce_state:
        return False
    if group is None:
        group = world.default_pg
    backend = _backends.get(id(group))
    if backend is None:
        ring = ring_group(group)
        if not isinstance(ring, ProcessGroup):
            return False  # not a member
        backend = _remember(cast(ProcessGroup, group), ring._get_backend(torch.device("cpu")))
    return group in world.pg_map and _all_reduce_now(backend, tensor, op)


def _remember(group: ProcessGroup, backend: Backend) -> Backend:
    _backends[id(group)] = backend
    weakref.finalize(group, _backends.pop, id(group)).atexit = False
    return backend
