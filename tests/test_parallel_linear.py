"""Tensor parallelism: what the ranks compute together is what one process computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch import nn
from torch.nn import functional

from ringcomm import parallel

WORLD_SIZE = 3
INPUT_SHAPES = [(6,), (5, 6), (2, 4, 6), (0, 6)]


def close(actual: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    assert actual is not None and expected is not None
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def part(tensor: torch.Tensor, dim: int, rank: Rank) -> torch.Tensor:
    return tensor.tensor_split(rank.world_size, dim)[rank.rank]


def regions(rank: Rank) -> None:
    """Each is compared with the derivative of the ranks' losses as one process would take it."""
    for dim in (0, 1, 2, -1):
        whole = numbers(3, 6, 9, seed=1)
        weights = [numbers(3, 6, 9, seed=2 + r) for r in range(rank.world_size)]
        own, shared = weights[rank.rank], weights[0]

        # The same tensor on all ranks, in losses that differ.
        x = whole.clone().requires_grad_()
        y = parallel.copy_to_group(x)
        assert torch.equal(y, whole)
        (y * own).sum().backward()
        close(x.grad, torch.stack(weights).sum(0))

        # The sum of what the ranks have, in the same loss.
        x = (whole * (rank.rank + 1)).requires_grad_()
        y = parallel.reduce_from_group(x)
        close(y, whole * sum(range(1, rank.world_size + 1)))
        (y * shared).sum().backward()
        close(x.grad, shared)

        # A part of the same tensor, in losses that add up to one.
        x = whole.clone().requires_grad_()
        y = parallel.scatter_to_group(x, dim)
        assert torch.equal(y, part(whole, dim, rank))
        (y * part(shared, dim, rank)).sum().backward()
        close(x.grad, shared)

        # All parts, in the same loss, and in losses that differ.
        for sum_gradient in (False, True):
            x = part(whole, dim, rank).clone().requires_grad_()
            y = parallel.gather_from_group(x, dim, sum_gradient=sum_gradient)
            assert torch.equal(y, whole)
            (y * (own if sum_gradient else shared)).sum().backward()
            total = torch.stack(weights).sum(0) if sum_gradient else shared
            close(x.grad, part(total, dim, rank))


def no_second_derivative(rank: Rank) -> None:
    for border in (
        parallel.copy_to_group,
        parallel.reduce_from_group,
        parallel.scatter_to_group,
        parallel.gather_from_group,
    ):
        x = numbers(6).requires_grad_()
        (gradient,) = torch.autograd.grad(border(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def column(rank: Rank, bias: bool) -> None:
    torch.manual_seed(0)
    whole = nn.Linear(6, 12, bias).double()
    for shape in INPUT_SHAPES:
        for gather in (True, False):
            whole.zero_grad()
            x = numbers(*shape).requires_grad_()
            expected = whole(x)
            expected.square().sum().backward()

            layer = parallel.ColumnParallelLinear(whole, gather_output=gather)
            own = numbers(*shape).requires_grad_()
            output = layer(own)
            close(output, expected if gather else part(expected, -1, rank))
            output.square().sum().backward()
            close(own.grad, x.grad)
            close(layer.weight.grad, part(whole.weight.grad, 0, rank))
            if bias:
                close(layer.bias.grad, part(whole.bias.grad, 0, rank))
            else:
                assert layer.bias is None


def row(rank: Rank, bias: bool) -> None:
    torch.manual_seed(0)
    whole = nn.Linear(6, 4, bias).double()
    for shape in INPUT_SHAPES:
        for is_parallel in (True, False):
            whole.zero_grad()
            x = numbers(*shape).requires_grad_()
            expected = whole(x)
            expected.square().sum().backward()

            layer = parallel.RowParallelLinear(whole, input_is_parallel=is_parallel)
            given = numbers(*shape)
            own = (part(given, -1, rank).clone() if is_parallel else given).requires_grad_()
            output = layer(own)
            close(output, expected)
            output.square().sum().backward()
            close(own.grad, part(x.grad, -1, rank) if is_parallel else x.grad)
            close(layer.weight.grad, part(whole.weight.grad, 1, rank))
            if bias:
                close(layer.bias.grad, whole.bias.grad)


def block(rank: Rank) -> None:
    """Column- and row-parallel make one region; here in each half of the ranks, and under bf16."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = halves[rank.rank // 2]
    torch.manual_seed(0)
    up, down = nn.Linear(8, 32), nn.Linear(32, 8)
    x = torch.randn(5, 8, requires_grad=True)
    own = x.detach().clone().requires_grad_()
    ours_up = parallel.ColumnParallelLinear(up, group)
    ours_down = parallel.RowParallelLinear(down, group)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        x.grad = own.grad = None
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            expected = down(functional.relu(up(x)))
            output = ours_down(functional.relu(ours_up(own)))
        assert output.dtype == expected.dtype
        torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)
        expected.float().square().sum().backward()
        output.float().square().sum().backward()
        assert own.grad.dtype == torch.float32
        torch.testing.assert_close(own.grad, x.grad, rtol=tolerance, atol=3 * tolerance)


def frozen(rank: Rank) -> None:
    whole = nn.Linear(6, 6).double().requires_grad_(False)
    layer = parallel.ColumnParallelLinear(whole)
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    x = numbers(2, 6).requires_grad_()
    layer(x).sum().backward()
    close(x.grad, whole.weight.sum(0).expand(2, 6))
    layer.weight.requires_grad_()
    layer(numbers(2, 6)).sum().backward()
    close(layer.weight.grad, numbers(2, 6).sum(0).expand_as(layer.weight))


def embedding(rank: Rank, rows: int, padding: int | None) -> None:
    torch.manual_seed(0)
    whole = nn.Embedding(rows, 5, padding_idx=padding).double()
    if padding is not None:
        with torch.no_grad():
            whole.weight[padding] = 7  # the gradient alone is zero
    divided = parallel.VocabParallelEmbedding(whole)
    tokens = torch.cat([torch.arange(rows), torch.randint(rows, (13,))]).view(-1, 1)
    expected = whole(tokens)
    output = divided(tokens)
    assert torch.equal(output, expected)
    (output * numbers(*output.shape)).sum().backward()
    (expected * numbers(*output.shape)).sum().backward()
    assert torch.equal(divided.weight.grad, part(whole.weight.grad, 0, rank))
    assert divided(torch.empty(0, 2, dtype=torch.int64)).shape == (0, 2, 5)


def refusals(rank: Rank) -> None:
    for make, words in (
        (lambda: parallel.ColumnParallelLinear(nn.Linear(6, 7)), "out_features is 7.*3 ranks"),
        (lambda: parallel.RowParallelLinear(nn.Linear(7, 6)), "in_features is 7.*3 ranks"),
        (lambda: parallel.scatter_to_group(torch.ones(2, 4)), "dimension -1 is 4"),
        (lambda: parallel.VocabParallelEmbedding(nn.Embedding(2, 4)), "2 rows.*3 ranks"),
        (
            lambda: parallel.VocabParallelEmbedding(nn.Embedding(6, 4, max_norm=1.0)),
            "max_norm=1.0",
        ),
        (
            lambda: parallel.VocabParallelEmbedding(nn.Embedding(6, 4, sparse=True)),
            "sparse=True",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    divided = parallel.VocabParallelEmbedding(nn.Embedding(7, 4))
    for token in (-1, 7, 1000):
        with pytest.raises(IndexError):
            divided(torch.tensor([0, token]))
    group = dist.new_group([0, 1])
    if rank.rank == 2:
        with pytest.raises(ValueError, match="rank 2 is not in the group"):
            parallel.ColumnParallelLinear(nn.Linear(6, 6), group)


def in_turn(rank: Rank, checks: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for check, arguments in checks:
        check(rank, *copy.deepcopy(arguments))


def test_three_ranks() -> None:
    on_processes(
        in_turn,
        WORLD_SIZE,
        [
            (regions, ()),
            (no_second_derivative, ()),
            *((check, (bias,)) for check in (column, row) for bias in (True, False)),
            (frozen, ()),
            *((embedding, (rows, None)) for rows in (3, 9, 10, 11)),
            *((embedding, (10, padding)) for padding in (0, 5, 9)),
            (refusals, ()),
        ],
        backend="ring",
    )


def test_groups_and_autocast() -> None:
    on_processes(block, 4, backend="ring")
