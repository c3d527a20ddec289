"""Collectives that autograd goes back through: the borders of a tensor-parallel region.

Outside of the region every rank holds the same tensor and computes the same gradient for it.
Inside, each rank holds and computes its own part. What happens to a tensor at the border, and to
its gradient on the way back:

    function             forward               backward
    copy_to_group        nothing               all-reduce
    reduce_from_group    all-reduce            nothing
    scatter_to_group     this rank's part      all-gather
    gather_from_group    all-gather            this rank's part
      sum_gradient=True  all-gather            reduce-scatter

Why copy_to_group has to sum: the ranks go on to compute different things from the same tensor x,
and the derivative of their total with respect to x is the sum of the ranks' derivatives. For the
same reason gather_from_group has to, if what is computed next differs between the ranks.

The first two are the operators f and g of M. Shoeybi et al., Megatron-LM: Training Multi-Billion
Parameter Language Models Using Model Parallelism, arXiv:1909.08053, section 3.

Tensors have any floating-point dtype and the same shape on all ranks. Errors are those of
torch.distributed; what is divided must have equal parts, else ValueError. Gradients of gradients
are not supported: asking for them raises RuntimeError.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch.autograd.function import Function, once_differentiable
from torch.distributed import ProcessGroup

from ringcomm._delegate import renamed
from ringcomm.parallel._shares import even_share

_all_gather_single = renamed(dist.all_gather_into_tensor, "all_gather_single")
_reduce_scatter_single = renamed(dist.reduce_scatter_tensor, "reduce_scatter_single")


def copy_to_group(tensor: torch.Tensor, group: ProcessGroup | None = None) -> torch.Tensor:
    """The tensor itself; its gradient is summed over the ranks."""
    return cast(torch.Tensor, _Copy.apply(tensor, group))


def reduce_from_group(tensor: torch.Tensor, group: ProcessGroup | None = None) -> torch.Tensor:
    """The sum of all ranks' tensors; the gradient is passed on as it is."""
    return cast(torch.Tensor, _Reduce.apply(tensor, group))


def scatter_to_group(
    tensor: torch.Tensor, dim: int = -1, group: ProcessGroup | None = None
) -> torch.Tensor:
    """This rank's part of a tensor along `dim`; the gradient is put together from all ranks'."""
    return cast(torch.Tensor, _Scatter.apply(tensor, dim, group))


def gather_from_group(
    tensor: torch.Tensor,
    dim: int = -1,
    group: ProcessGroup | None = None,
    *,
    sum_gradient: bool = False,
) -> torch.Tensor:
    """All ranks' tensors, one after the other along `dim`.

    Args:
        tensor: this rank's part.
        dim: along which the parts are put together; its size grows by the number of ranks.
        group: the default group if not given.
        sum_gradient: set it if the ranks compute different things from the result. Their gradients
            are then summed; else they are taken to be the same on all ranks.
    """
    return cast(torch.Tensor, _Gather.apply(tensor, dim, group, sum_gradient))


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(gradient, ctx.group), None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
        return _summed(tensor, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Scatter(Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, dim: int, group: ProcessGroup | None
    ) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _part(tensor, dim, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _gathered(gradient, ctx.dim, ctx.group), None, None


class _Gather(Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, dim: int, group: ProcessGroup | None, sum_gradient: bool
    ) -> torch.Tensor:
        ctx.dim, ctx.group, ctx.sum_gradient = dim, group, sum_gradient
        return _gathered(tensor, dim, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        own = _reduce_scattered if ctx.sum_gradient else _part
        return own(gradient, ctx.dim, ctx.group), None, None, None


def _summed(tensor: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result


def _part(tensor: torch.Tensor, dim: int, group: ProcessGroup | None) -> torch.Tensor:
    part = even_share(tensor.size(dim), f"the tensor's size in dimension {dim}", group)
    return tensor.narrow(dim, part.start, part.stop - part.start).clone()


# torch's single-tensor collectives join and divide along dimension 0.


def _gathered(tensor: torch.Tensor, dim: int, group: ProcessGroup | None) -> torch.Tensor:
    own = tensor.movedim(dim, 0).contiguous()
    result = own.new_empty((dist.get_world_size(group) * own.size(0), *own.shape[1:]))
    _all_gather_single(result, own, group=group)
    return result.movedim(0, dim)


def _reduce_scattered(tensor: torch.Tensor, dim: int, group: ProcessGroup | None) -> torch.Tensor:
    everyones = tensor.movedim(dim, 0).contiguous()
    result = everyones.new_empty(
        (everyones.size(0) // dist.get_world_size(group), *everyones.shape[1:])
    )
    _reduce_scatter_single(result, everyones, group=group)
    return result.movedim(0, dim)
