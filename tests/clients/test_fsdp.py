"""FSDP2 (fully_shard) on ring trains what one process trains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

STEPS = 3


def plain_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return loss_of(model(batch(rank, step).to(next(model.parameters()).dtype)))


def whole(model: nn.Module) -> list[torch.Tensor]:
    result = []
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        result.append(parameter.full_tensor().detach())
    return result


def network() -> nn.Module:
    """As the others', without the scalar, which FSDP cannot shard."""
    model = make_network()
    scale = model.scale.detach().clone()
    del model.scale
    model.register_buffer("scale", scale)
    return model


def train(rank: Rank, mesh: Any = None, divide: float | None = None, **options: Any) -> nn.Module:
    model = network()
    mesh = mesh or init_device_mesh("cpu", (rank.world_size,))
    for layer in (model.first, model.last):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if divide is not None:
        for module in (model, model.first, model.last):
            module.set_gradient_divide_factor(divide)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        plain_loss(model, rank.rank, step).backward()
        optimizer.step()
    return model


def trained(rank: Rank, options: dict[str, Any]) -> list[torch.Tensor]:
    return whole(train(rank, **options))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("reshard", [True, False])
def test_trains_what_one_process_trains(world_size: int, reshard: bool) -> None:
    expected = trained_in_one_process(world_size, STEPS, plain_loss, network())
    options = {"reshard_after_forward": reshard}
    for parameters in on_processes(trained, world_size, options, backend="ring"):
        assert_alike(parameters, expected)


def test_gradient_divide_factor() -> None:
    expected = trained_in_one_process(
        2, STEPS, lambda *arguments: plain_loss(*arguments) * 2 / 5, network()
    )
    for parameters in on_processes(trained, 2, {"divide": 5.0}, backend="ring"):
        assert_alike(parameters, expected)


def hybrid(rank: Rank) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return whole(train(rank, mesh))


@also_on_hosts(2)
def test_sharded_in_one_dimension_replicated_in_the_other() -> None:
    expected = trained_in_one_process(4, STEPS, plain_loss, network())
    for parameters in on_processes(hybrid, 4, backend="ring"):
        assert_alike(parameters, expected)


def trained_in_bf16(rank: Rank, reduce_dtype: torch.dtype) -> list[torch.Tensor]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    return whole(train(rank, mp_policy=policy))


def bf16_in_one_process(world_size: int, reduce_dtype: torch.dtype) -> list[torch.Tensor]:
    """Parameters in float64, forward and backward in bf16, gradients averaged in reduce_dtype."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        gradients = []
        for rank in range(world_size):
            low = copy.deepcopy(model).bfloat16()
            low.scale = model.scale
            plain_loss(low, rank, step).backward()
            gradients.append([p.grad.to(reduce_dtype).double() for p in low.parameters()])
        for parameter, *parts in zip(model.parameters(), *gradients, strict=True):
            average = torch.stack(parts).sum(0) / world_size
            parameter.grad = average.to(reduce_dtype).double()
        optimizer.step()
    return parameters_of(model)


@pytest.mark.parametrize("reduce_dtype", [torch.bfloat16, torch.float32])
def test_mixed_precision(reduce_dtype: torch.dtype) -> None:
    expected = bf16_in_one_process(2, reduce_dtype)
    first, second = on_processes(trained_in_bf16, 2, reduce_dtype, backend="ring")
    assert_alike(first, second, tolerance=0)
    assert_alike(first, expected, tolerance=1e-6)


def clipped(rank: Rank) -> list[torch.Tensor]:
    model = train(rank)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    gradients = [parameter.grad.full_tensor() for parameter in model.parameters()]
    return [norm.full_tensor(), *gradients]


@also_on_hosts(1, "gloo")
def test_gradient_clipping() -> None:
    same_as_gloo(clipped, 2)


def accumulated(rank: Rank) -> list[torch.Tensor]:
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (rank.world_size,)))
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        plain_loss(model, rank.rank, step).backward()
    dist.barrier()
    return [parameter.grad.full_tensor() for parameter in model.parameters()]


def test_gradient_accumulation() -> None:
    same_as_gloo(accumulated, 2)
