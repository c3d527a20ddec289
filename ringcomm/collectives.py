"""The direct calls: torch.distributed's names, arguments and semantics, carried out by ringcomm.

`group` may be of any backend. If it is of another than "ring", the first call here makes a group of
"ring" of the same ranks beside it, so all members must make that call (`ringcomm.init()` is one).
torch.distributed's own calls go on using the group's own backend.

Whatever is said here of one function holds for all:

- dtypes: all of torch can be moved; reduced are float64, float32, float16, bfloat16, float8_e4m3fn,
  float8_e5m2, int64, int32, int16, int8, uint8, bool; complex where torch.distributed allows it.
- op: SUM, PRODUCT, MIN and MAX for all of these, AVG for all but bool, BAND, BOR and BXOR for
  integers and bool.
  Integers wrap around, but for AVG: that is the exact mean, truncated toward zero. For it all
  ranks' values are added at once, by "direct" whatever algorithm is selected.
- Tensors may have any shape, strides and storage offset. Counts and dtypes must agree between
  ranks. Inputs may share memory with outputs in any way: the result is as if they did not. Outputs
  that share elements with each other are a ValueError, as is any tensor that is_neg() or is_conj(),
  or sparse and complex.
- async_op=True returns a Work at once; the tensors must be left alone until its wait() returns. A
  rank outside of the group gets None and a warning.
- TypeError, ValueError and NotImplementedError (a device without an executor) are raised by the
  rank that passes bad arguments, before anything is sent. torch.distributed.DistBackendError is
  raised on every rank, by the call or by wait(), if the ranks' calls differ, time runs out, a rank
  died, or the group is closed.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from inspect import signature
from typing import Any, Literal, cast, overload

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp, Work
from torch.distributed import distributed_c10d as c10d

from ringcomm._C import (
    try_all_gather_sync,
    try_all_reduce_sync,
    try_all_to_all_sync,
    try_broadcast_sync,
    try_reduce_scatter_sync,
    try_reduce_sync,
)
from ringcomm._delegate import by_ring, on_ring, renamed
from ringcomm._fast_path import is_compiling, try_barrier_sync
from ringcomm.groups import bounded, ring_group

_Op = ReduceOp | ReduceOp.RedOpType


def _barrier_with_timeout(
    group: Any,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | None = None,
) -> Work | None:
    """torch.distributed.barrier as torch 2.12 and newer have it; 2.11's takes no time-out."""
    if c10d._rank_not_in_group(group):
        c10d._warn_not_in_group("barrier")
        return None
    options = dist.BarrierOptions()
    options.asyncOp = async_op
    if timeout is not None:
        options.timeout = timeout
    work: Work = group.barrier(options)
    if async_op:
        return work
    work.wait()
    return None


def _gather_by_parts(
    tensor: torch.Tensor,
    gather_tensor: torch.Tensor | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """torch.distributed.gather_single, which torch before 2.14 and its wrapper for DETAIL lack."""
    parts = None
    if gather_tensor is not None and not c10d._rank_not_in_group(group):
        if gather_tensor.numel() != group.size() * tensor.numel():
            raise ValueError(
                f"gather_tensor must have {group.size()} times the {tensor.numel()} elements of "
                f"tensor, got {gather_tensor.numel()}"
            )
        given = dst if dst is not None or group_dst is not None else 0
        root = group_dst if given is None else dist.get_group_rank(group, given)
        if root == group.rank():
            parts = list(gather_tensor.view(group.size(), tensor.numel()).unbind())
    return dist.gather(tensor, parts, dst, group, async_op, group_dst=group_dst)


# The functions below try the fast path first. These carry out what it cannot do.
_all_reduce = on_ring(dist.all_reduce)
_reduce_scatter_tensor = on_ring(renamed(dist.reduce_scatter_tensor, "reduce_scatter_single"))
_all_gather_into_tensor = on_ring(renamed(dist.all_gather_into_tensor, "all_gather_single"))
_broadcast = on_ring(dist.broadcast)
_reduce = on_ring(dist.reduce)
_all_to_all_single = on_ring(dist.all_to_all_single)
_gather_by_parts.__name__ = "gather_single"  # by which errors name it
_gather_single = on_ring(_gather_by_parts)
_barrier = on_ring(
    dist.barrier if "timeout" in signature(dist.barrier).parameters else _barrier_with_timeout
)


@overload
def all_reduce(
    tensor: torch.Tensor,
    op: _Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
) -> Work: ...


@overload
def all_reduce(
    tensor: torch.Tensor,
    op: _Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None: ...


def all_reduce(
    tensor: torch.Tensor,
    op: _Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Every rank's tensor becomes the sum (or what `op` says) of all ranks' tensors.

    All ranks end with the same bits. A synchronous call costs less than torch.distributed's, as it
    skips the dispatcher when nothing is watching it.

    Args:
        tensor: any shape, the same count on all ranks; input and output.
        op: how the values are combined.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
    """
    if not async_op and not is_compiling() and try_all_reduce_sync(tensor, op, group):
        return None
    return _all_reduce(tensor, op, group=group, async_op=async_op)


@by_ring(dist.reduce_scatter)
def reduce_scatter() -> None:
    """Rank r's output becomes the sum (or what `op` says) of all ranks' input_list[r].

    Args:
        output: as many elements as this rank's input_list[rank].
        input_list: one tensor per rank; all ranks' input_list[r] have the same count.
        op: how the values are combined.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
    """


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: _Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Rank r's output becomes the sum (or what `op` says) of all ranks' r-th part of input.

    Args:
        output: any shape.
        input: world_size times as many elements as output.
        op: how the values are combined.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
    """
    if not async_op and not is_compiling() and try_reduce_scatter_sync(output, input, op, group):
        return None
    return _reduce_scatter_tensor(output, input, op, group=group, async_op=async_op)


reduce_scatter_single = reduce_scatter_tensor
"""`reduce_scatter_tensor` by the name that torch gives it from 2.14 on."""


@by_ring(dist.all_gather)
def all_gather() -> None:
    """tensor_list[r] becomes rank r's tensor, on every rank.

    Args:
        tensor_list: one tensor per rank, as many elements as that rank's tensor; output.
        tensor: any shape; the ranks' counts may differ.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
    """


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """output_tensor becomes all ranks' input_tensors, one after the other, on every rank.

    Args:
        output_tensor: world_size times as many elements as input_tensor.
        input_tensor: any shape, the same count on all ranks.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
    """
    if (
        not async_op
        and not is_compiling()
        and try_all_gather_sync(output_tensor, input_tensor, group)
    ):
        return None
    return _all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


all_gather_single = all_gather_into_tensor
"""`all_gather_into_tensor` by the name that torch gives it from 2.14 on."""


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Every rank's tensor becomes that of one rank.

    Args:
        tensor: any shape, the same count on all ranks; input on the source, output elsewhere.
        src: the source's global rank.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
        group_src: the source's rank in the group; one of it and src must be given.
    """
    if (
        not async_op
        and src is not None
        and group_src is None
        and not is_compiling()
        and try_broadcast_sync(tensor, src, group)
    ):
        return None
    return _broadcast(tensor, src, group=group, async_op=async_op, group_src=group_src)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: _Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """One rank's tensor becomes the sum (or what `op` says) of all ranks' tensors.

    Args:
        tensor: any shape, the same count on all ranks; changed on the destination only.
        dst: the destination's global rank.
        op: how the values are combined.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
        group_dst: the destination's rank in the group; one of it and dst must be given.
    """
    if (
        not async_op
        and dst is not None
        and group_dst is None
        and not is_compiling()
        and try_reduce_sync(tensor, dst, op, group)
    ):
        return None
    return _reduce(tensor, dst, op, group=group, async_op=async_op, group_dst=group_dst)


@by_ring(dist.gather)
def gather() -> None:
    """gather_list[r] becomes rank r's tensor, on one rank.

    Args:
        tensor: any shape, the same count on all ranks.
        gather_list: on the destination one tensor per rank, of the same count; elsewhere None.
        dst: the destination's global rank; 0 if neither it nor group_dst is given.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
        group_dst: the destination's rank in the group.
    """


def gather_single(
    tensor: torch.Tensor,
    gather_tensor: torch.Tensor | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """gather_tensor becomes all ranks' tensors, one after the other, on one rank.

    Args:
        tensor: any shape, the same count on all ranks.
        gather_tensor: on the destination contiguous, with world_size times as many elements as
            tensor; elsewhere it is not read.
        dst: the destination's global rank; 0 if neither it nor group_dst is given.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
        group_dst: the destination's rank in the group.
    """
    return _gather_single(
        tensor, gather_tensor, dst, group=group, async_op=async_op, group_dst=group_dst
    )


gather_into_tensor = gather_single
"""`gather_single` by its other name."""


@by_ring(dist.scatter)
def scatter() -> None:
    """Rank r's tensor becomes scatter_list[r] of one rank.

    Args:
        tensor: any shape, the same count on all ranks; output.
        scatter_list: on the source one tensor per rank, of the same count; elsewhere None.
        src: the source's global rank; 0 if neither it nor group_src is given.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
        group_src: the source's rank in the group.
    """


@by_ring(dist.all_to_all)
def all_to_all() -> None:
    """output_tensor_list[i] on rank j becomes input_tensor_list[j] of rank i.

    Args:
        output_tensor_list: one tensor per rank, each as large as what that rank sends here.
        input_tensor_list: one tensor per rank; counts may differ.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
    """


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Sends part j of input to rank j, and puts what rank i sends into part i of output.

    Args:
        output: split along dimension 0.
        input: split along dimension 0.
        output_split_sizes: rows of each part of output; equal parts if not given.
        input_split_sizes: rows of each part of input; equal parts if not given.
        group: the default group if not given.
        async_op: return a Work instead of waiting.
    """
    has_equal_parts = output_split_sizes is None and input_split_sizes is None
    if (
        has_equal_parts
        and not async_op
        and not is_compiling()
        and try_all_to_all_sync(output, input, group)
    ):
        return None
    return _all_to_all_single(
        output, input, output_split_sizes, input_split_sizes, group=group, async_op=async_op
    )


def barrier(
    group: ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | None = None,
) -> Work | None:
    """Waits until all ranks have come here.

    Args:
        group: the default group if not given.
        async_op: return a Work instead of waiting.
        device_ids: as torch.distributed takes it; "ring" has no use for it.
        timeout: how long to wait; the group's if not given.
    """
    if (
        not async_op
        and device_ids is None
        and timeout is None
        and not is_compiling()
        and try_barrier_sync(group)
    ):
        return None
    return _barrier(group=group, async_op=async_op, device_ids=device_ids, timeout=bounded(timeout))


@by_ring(dist.all_reduce_coalesced)
def all_reduce_coalesced() -> None:
    """Every rank's tensors become the sums (or what `op` says) of all ranks' tensors, in one call.

    torch warns that it will remove this.

    Args:
        tensors: of one dtype; the same number and counts on all ranks; input and output.
        op: how the values are combined.
        group: the default group if not given.
        async_op: return a Future instead of waiting.
    """


@by_ring(dist.all_gather_coalesced)
def all_gather_coalesced() -> None:
    """output_tensor_lists[r] becomes rank r's input_tensor_list, on every rank, in one call.

    torch warns that it will remove this.

    Args:
        output_tensor_lists: for each rank a list of tensors, as many elements as those; output.
        input_tensor_list: of one dtype; the same number and counts on all ranks.
        group: the default group if not given.
        async_op: return a Future instead of waiting.
    """


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """A barrier that names the ranks that did not come, and leaves the group usable.

    Args:
        group: the default group if not given.
        timeout: how long to wait, a number in seconds; the group's if not given.
        wait_all_ranks: name all ranks that are missing, and not only the first.

    Raises:
        RuntimeError: ranks are missing; the message on rank 0 names them.
    """
    ring = ring_group(group)
    if not isinstance(ring, ProcessGroup):
        warnings.warn("monitored_barrier: this rank is not in the given group", stacklevel=2)
        return
    limit = {} if timeout is None else {"timeout": bounded(timeout)}
    cast(Any, ring).monitored_barrier(wait_all_ranks=wait_all_ranks, **limit)
