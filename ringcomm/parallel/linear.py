"""Linear layers whose weights are divided over the ranks of a group.

    column-parallel    rank r holds rows r of the weight, as torch stores it (out, in), and computes
                       those of the outputs; each rank needs the whole input
    row-parallel       rank r holds columns r and needs only that part of the input; each rank
                       computes an addend of every output

In the first the columns of A in y = xA are divided, in the second its rows; hence the names. A
column-parallel layer, anything that works on single elements, and a row-parallel layer make one
region: one all-reduce forward (at its end) and one backward (at its start).
M. Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import Function, once_differentiable
from torch.distributed import ProcessGroup
from torch.nn import functional

from ringcomm.parallel._shares import even_share
from ringcomm.parallel.regions import gather_from_group, reduce_from_group, scatter_to_group


def column_parallel_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    group: ProcessGroup | None = None,
    gather_output: bool = False,
) -> torch.Tensor:
    """This rank's part of the outputs of a linear layer, or all of them.

    On the way back the input's gradient is summed over the ranks while the weight's is computed.

    Args:
        input: (..., in), the same on all ranks.
        weight: (out / world_size, in), this rank's rows.
        bias: (out / world_size,), this rank's part.
        group: the default group if not given.
        gather_output: return the outputs of all ranks.

    Returns:
        (..., out / world_size), or (..., out) if gather_output is set.
    """
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight = input.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    output = cast(torch.Tensor, _ColumnParallelLinear.apply(input, weight, bias, group))
    return gather_from_group(output, -1, group) if gather_output else output


def row_parallel_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    group: ProcessGroup | None = None,
    input_is_parallel: bool = True,
) -> torch.Tensor:
    """The outputs of a linear layer, summed up from what the ranks' parts of the input contribute.

    Args:
        input: (..., in / world_size), this rank's part; (..., in) if input_is_parallel is not set.
        weight: (out, in / world_size), this rank's columns.
        bias: (out,), the same on all ranks; it is added once, after the sum.
        group: the default group if not given.
        input_is_parallel: whether each rank has its part of the input, or all of it.

    Returns:
        (..., out), the same on all ranks.

    Raises:
        ValueError: the input is to be divided and has no equal parts.
    """
    if not input_is_parallel:
        input = scatter_to_group(input, -1, group)
    output = reduce_from_group(functional.linear(input, weight), group)
    return output if bias is None else output + bias.to(output.dtype)


class _ColumnParallelLinear(Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: ProcessGroup | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.group = group
        return functional.linear(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, _ = ctx.needs_input_grad
        of_input = of_weight = of_bias = work = None
        if needs_input:
            of_input = (gradient @ weight).contiguous()
            work = dist.all_reduce(of_input, group=ctx.group, async_op=True)
        rows = gradient.flatten(0, -2) if gradient.dim() > 1 else gradient[None]
        if needs_weight:
            of_weight = rows.t() @ input.reshape(-1, input.size(-1))
        if needs_bias:
            of_bias = rows.sum(0)
        if work is not None:
            work.wait()
        return of_input, of_weight, of_bias, None


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank holds a part of the outputs.

    Args:
        linear: the whole layer, the same on all ranks; this rank's rows of it are copied.
        group: the default group if not given.
        gather_output: return all ranks' outputs, (..., out), and not this rank's alone.

    Raises:
        ValueError: the outputs have no equal parts.
    """

    def __init__(
        self, linear: nn.Linear, group: ProcessGroup | None = None, gather_output: bool = False
    ) -> None:
        super().__init__()
        rows = even_share(linear.out_features, "out_features", group)
        self.weight = _part(linear.weight, rows)
        self.bias = None if linear.bias is None else _part(linear.bias, rows)
        self.group = group
        self.gather_output = gather_output

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return column_parallel_linear(input, self.weight, self.bias, self.group, self.gather_output)


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank holds a part of the inputs.

    Args:
        linear: the whole layer, the same on all ranks; this rank's columns of it are copied, and
            the bias.
        group: the default group if not given.
        input_is_parallel: whether each rank is given its part of the input, as a
            ColumnParallelLinear leaves it, or all of it.

    Raises:
        ValueError: the inputs have no equal parts.
    """

    def __init__(
        self, linear: nn.Linear, group: ProcessGroup | None = None, input_is_parallel: bool = True
    ) -> None:
        super().__init__()
        columns = even_share(linear.in_features, "in_features", group)
        self.weight = _part(linear.weight, (slice(None), columns))
        self.bias = None if linear.bias is None else _part(linear.bias, slice(None))
        self.group = group
        self.input_is_parallel = input_is_parallel

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return row_parallel_linear(
            input, self.weight, self.bias, self.group, self.input_is_parallel
        )


def _part(parameter: torch.Tensor, index: slice | tuple[slice, ...]) -> nn.Parameter:
    return nn.Parameter(parameter.detach()[index].clone(), parameter.requires_grad)
