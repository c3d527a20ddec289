"""Functional collectives, differentiable collectives and torch.compile on ring."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as differentiable
from alike import (
    also_on_hosts,
    assert_alike,
    batch,
    loss_of,
    make_network,
    parameters_of,
    same_as_gloo,
    trained_in_one_process,
)
from ranks import Rank, on_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def every_functional_collective(x: torch.Tensor) -> list[torch.Tensor]:
    group = dist.group.WORLD
    n = dist.get_world_size()
    rows = x.shape[0]
    uneven = [rows - (n - 1), *[1] * (n - 1)]
    own = [uneven[dist.get_rank()]] * n
    return [
        funcol.all_reduce(x, "sum", group),
        funcol.all_reduce(x, "max", group),
        funcol.all_gather_tensor(x, 0, group),
        funcol.all_gather_tensor(x, 1, group),
        funcol.reduce_scatter_tensor(x.repeat(n, 1), "sum", 0, group),
        funcol.broadcast(x, 1, group),
        *funcol.all_reduce_coalesced([x, 2 * x], "sum", group),
        *funcol.all_gather_into_tensor_coalesced([x, x + 1], group),
        *funcol.reduce_scatter_tensor_coalesced(
            [x.repeat(n, 1), x.repeat(n, 1)], "sum", [0, 0], group
        ),
        funcol.all_to_all_single(x.repeat(n, 1), None, None, group),
        funcol.all_to_all_single(x, own, uneven, group),
    ]


def called(rank: Rank, compiler: str | None) -> list[torch.Tensor]:
    function = every_functional_collective
    if compiler is not None:
        function = torch.compile(function, backend=compiler, fullgraph=True)
    results = function(batch(rank.rank, 0))
    return [funcol.wait_tensor(result).clone() for result in results]


@also_on_hosts(1)
@pytest.mark.parametrize("world_size", [2, 3])
def test_functional_collectives(world_size: int) -> None:
    same_as_gloo(called, world_size, None)


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_compiled_functional_collectives(compiler: str) -> None:
    found = on_processes(called, 2, compiler, backend="ring")
    expected = on_processes(called, 2, None, backend="ring")
    assert_alike(found, expected, tolerance=0)


@pytest.mark.slow
def test_compiled_by_inductor() -> None:
    found = on_processes(called, 2, "inductor", backend="ring", timeout=240)
    expected = on_processes(called, 2, None, backend="ring")
    assert_alike(found, expected)


def compiled_all_reduce(rank: Rank) -> torch.Tensor:
    """dist.all_reduce itself is traced into a functional collective."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return step(batch(rank.rank, 0))


def test_compiled_all_reduce() -> None:
    expected = 2 * (batch(0, 0) + batch(1, 0)) + 1
    for found in on_processes(compiled_all_reduce, 2, backend="ring"):
        assert_alike(found, expected)


def compiled_ddp(rank: Rank) -> list[torch.Tensor]:
    model = DistributedDataParallel(make_network())
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(compiled(batch(rank.rank, step))).backward()
        optimizer.step()
    return parameters_of(model)


def test_compiled_ddp() -> None:
    def plain_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        return loss_of(model(batch(rank, step)))

    expected = trained_in_one_process(2, 3, plain_loss)
    for parameters in on_processes(compiled_ddp, 2, backend="ring"):
        assert_alike(parameters, expected)


def gradients_through_collectives(rank: Rank) -> list[Any]:
    x = batch(rank.rank, 0).requires_grad_()
    outputs = [
        differentiable.all_reduce(x * 2),
        torch.cat(differentiable.all_gather(x * 3)),
        differentiable.reduce_scatter(torch.empty_like(x), [x, x * 2]),
        differentiable.broadcast(x * 1.5, 1),
        torch.cat(differentiable.all_to_all([torch.empty_like(x) for _ in range(2)], [x, -x])),
        differentiable.all_to_all_single(torch.empty(4, 10).double(), x[:4] * 2),
    ]
    sum(loss_of(output) for output in outputs).backward()
    return [x.grad, *[output.detach() for output in outputs]]


@also_on_hosts(1, "gloo")
def test_differentiable_collectives() -> None:
    same_as_gloo(gradients_through_collectives, 2)
