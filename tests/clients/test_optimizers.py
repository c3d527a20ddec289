"""Sharded optimizer states and averaged models on ring."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike import (
    also_on_hosts,
    assert_alike,
    batch,
    loss_of,
    make_network,
    parameters_of,
    same_as_gloo,
)
from ranks import Rank, on_processes
from torch import nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


def adam_in_one_process(world_size: int) -> list[torch.Tensor]:
    model = make_network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(world_size):
            (loss_of(model(batch(rank, step))) / world_size).backward()
        optimizer.step()
    return parameters_of(model)


def train_sharded(rank: Rank, options: dict[str, Any]) -> tuple[list[torch.Tensor], int]:
    model = DistributedDataParallel(make_network())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, **options
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model(batch(rank.rank, step))).backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    states = len(optimizer.state_dict()["state"]) if rank.rank == 0 else 0
    return parameters_of(model), states


@also_on_hosts(1)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("options", [{}, {"parameters_as_bucket_view": True}], ids=str)
def test_zero_redundancy_optimizer(options: dict[str, Any], world_size: int) -> None:
    expected = adam_in_one_process(world_size)
    results = on_processes(train_sharded, world_size, options, backend="ring")
    for parameters, _ in results:
        assert_alike(parameters, expected)
    assert results[0][1] == len(expected)


def averaged(rank: Rank) -> list[torch.Tensor]:
    torch.manual_seed(rank.rank)
    model = nn.Linear(13, 7).double()
    average_parameters(iter(model.parameters()), torch.distributed.group.WORLD)
    return parameters_of(model)


def test_model_averaging() -> None:
    same_as_gloo(averaged, 2)
