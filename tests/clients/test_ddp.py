"""DistributedDataParallel on ring trains what one process trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from alike import (
    Network,
    also_on_hosts,
    assert_alike,
    batch,
    loss_of,
    make_network,
    parameters_of,
    trained_in_one_process,
)
from ranks import Rank, on_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm import plan

STEPS = 4


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return loss_of(model(batch(rank, step)))


def train(rank: Rank, options: dict[str, Any]) -> list[torch.Tensor]:
    model = DistributedDataParallel(make_network(), **options)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        plain_loss(model, rank.rank, step).backward()
        optimizer.step()
    return parameters_of(model)


def line(rank: int, world_size: int) -> plan.Plan:
    """To the last rank and back."""
    onward, back = rank + 1 < world_size, rank > 0
    return plan.Plan(
        1,
        [
            plan.Step(recvs=[plan.Transfer(rank - 1, 0, reduce=True)] * back),
            plan.Step(sends=[plan.Transfer(rank + 1, 0)] * onward),
            plan.Step(recvs=[plan.Transfer(rank + 1, 0)] * onward),
            plan.Step(sends=[plan.Transfer(rank - 1, 0)] * back),
        ],
    )


def train_along_a_line(rank: Rank) -> tuple[list[torch.Tensor], bool, int]:
    made_for: list[int] = []

    def noted(rank: int, world_size: int) -> plan.Plan:
        made_for.append(rank)
        return line(rank, world_size)

    plan.register("all_reduce", "line", noted)
    options = ringcomm.Options(algorithm="line")
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size, pg_options=options
    )
    parameters = train(rank, {})
    numbers = [torch.randn(5000, generator=torch.Generator().manual_seed(r)) for r in range(4)]
    mine = numbers[rank.rank].clone()
    dist.all_reduce(mine)
    along_the_line = ((numbers[0] + numbers[1]) + numbers[2]) + numbers[3]
    dist.destroy_process_group()
    return parameters, torch.equal(mine, along_the_line), len(made_for)


def test_by_a_plan_of_ones_own() -> None:
    expected = trained_in_one_process(4, STEPS, plain_loss)
    for parameters, same_bits, num_made in on_processes(train_along_a_line, 4):
        assert_alike(parameters, expected)
        assert same_bits
        assert num_made >= 4


@also_on_hosts(2)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_trains_what_one_process_trains(world_size: int) -> None:
    expected = trained_in_one_process(world_size, STEPS, plain_loss)
    for parameters in on_processes(train, world_size, {}, backend="ring"):
        assert_alike(parameters, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0.001},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
        {"static_graph": True},
        {"broadcast_buffers": False, "find_unused_parameters": True},
    ],
    ids=["uneven buckets", "bucket view", "static graph", "finds unused"],
)
def test_options(options: dict[str, Any]) -> None:
    expected = trained_in_one_process(3, STEPS, plain_loss)
    results = on_processes(train, 3, options, backend="ring")
    for parameters in results:
        assert_alike(parameters, expected)
        assert_alike(parameters, results[0], tolerance=0)


class Branches(Network):
    """The rank's parity decides which of two layers has a gradient; a third never has one."""

    def __init__(self) -> None:
        super().__init__(out=17)
        self.even, self.odd, self.never = (nn.Linear(17, 2) for _ in range(3))

    def forward(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        return (self.odd if rank % 2 else self.even)(super().forward(x))


def make_branches() -> Branches:
    torch.manual_seed(1)
    return Branches().double()


def branch_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return loss_of(model(batch(rank, step), rank))


def train_branches(rank: Rank) -> list[torch.Tensor]:
    model = DistributedDataParallel(
        make_branches(), find_unused_parameters=True, bucket_cap_mb=0.001
    )
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        branch_loss(model, rank.rank, step).backward()
        optimizer.step()
    assert model.module.never.weight.grad is None
    return parameters_of(model)


def test_parameters_unused_on_some_ranks() -> None:
    expected = trained_in_one_process(3, STEPS, branch_loss, make_branches())
    for parameters in on_processes(train_branches, 3, backend="ring"):
        assert_alike(parameters, expected)


def train_with_accumulation(rank: Rank) -> list[torch.Tensor]:
    model = DistributedDataParallel(make_network())
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            plain_loss(model, rank.rank, step).backward()
        plain_loss(model, rank.rank, step + 100).backward()
        optimizer.step()
    return parameters_of(model)


def test_no_sync() -> None:
    def two_batches(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        return plain_loss(model, rank, step) + plain_loss(model, rank, step + 100)

    expected = trained_in_one_process(2, STEPS, two_batches)
    for parameters in on_processes(train_with_accumulation, 2, backend="ring"):
        assert_alike(parameters, expected)


def num_batches(rank: int) -> int:
    return 2 + rank


def train_on_uneven_inputs(rank: Rank) -> list[torch.Tensor]:
    model = DistributedDataParallel(make_network())
    optimizer = sgd(model)
    with model.join():
        for step in range(num_batches(rank.rank)):
            optimizer.zero_grad()
            plain_loss(model, rank.rank, step).backward()
            optimizer.step()
    return parameters_of(model)


@also_on_hosts(1, "gloo")
def test_join_with_uneven_inputs() -> None:
    def loss_while_it_lasts(model: nn.Module, rank: int, step: int) -> torch.Tensor | None:
        return plain_loss(model, rank, step) if step < num_batches(rank) else None

    expected = trained_in_one_process(3, num_batches(2), loss_while_it_lasts)
    results = on_processes(train_on_uneven_inputs, 3, backend="ring")
    # Who ran out of batches gets the last one's parameters.
    for parameters in results:
        assert_alike(parameters, expected)


class Counting(Network):
    """Buffers, which DDP broadcasts from rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


def buffers_in_training(rank: Rank) -> list[torch.Tensor]:
    torch.manual_seed(rank.rank)  # DDP makes the parameters rank 0's, too
    model = DistributedDataParallel(Counting().double())
    for step in range(2):
        plain_loss(model, rank.rank, step).backward()
    model(batch(0, 2))
    return [*parameters_of(model), *(buffer.clone() for buffer in model.buffers())]


def test_buffers_and_first_parameters_are_rank_0s() -> None:
    first, second = on_processes(buffers_in_training, 2, backend="ring")
    assert_alike(second, first, tolerance=0)
