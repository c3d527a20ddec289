"""torch.distributed.pipelining on ring: every schedule trains what one process trains."""

from __future__ import annotations

import pytest
import torch
from alike import also_on_hosts, assert_alike, batch, loss_of, parameters_of
from ranks import Rank, on_processes
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

STEPS = 2
MICROBATCHES = 4


def layer(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(10, 10), nn.Tanh()).double()


def whole_batch(step: int) -> torch.Tensor:
    return torch.cat([batch(rank, step) for rank in range(MICROBATCHES)])


def mean_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return loss_of(output - target)


def train(rank: Rank, schedule: str, stages_per_rank: int) -> list[list[torch.Tensor]]:
    numbers = range(rank.rank, stages_per_rank * rank.world_size, rank.world_size)
    layers = [layer(number) for number in numbers]
    device = torch.device("cpu")
    num_stages = stages_per_rank * rank.world_size
    stages = [
        PipelineStage(module, number, num_stages, device)
        for module, number in zip(layers, numbers, strict=True)
    ]
    runner = get_schedule_class(schedule)(
        stages[0] if stages_per_rank == 1 else stages,
        n_microbatches=MICROBATCHES,
        loss_fn=mean_loss,
    )
    optimizer = torch.optim.SGD(nn.ModuleList(layers).parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = (whole_batch(step),) if rank.rank == 0 else ()
        last = rank.rank == rank.world_size - 1
        runner.step(*inputs, **({"target": whole_batch(step + 50)} if last else {}))
        optimizer.step()
    return [parameters_of(module) for module in layers]


def in_one_process(num_stages: int) -> list[list[torch.Tensor]]:
    layers = [layer(number) for number in range(num_stages)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        mean_loss(model(whole_batch(step)), whole_batch(step + 50)).backward()
        optimizer.step()
    return [parameters_of(module) for module in layers]


@also_on_hosts(1, "gloo")
@pytest.mark.parametrize(
    ("schedule", "world_size", "stages_per_rank"),
    [
        ("GPipe", 3, 1),
        ("1F1B", 3, 1),
        ("Interleaved1F1B", 2, 2),
        ("LoopedBFS", 2, 2),
        ("InterleavedZeroBubble", 2, 2),
    ],
)
def test_schedule(schedule: str, world_size: int, stages_per_rank: int) -> None:
    expected = in_one_process(world_size * stages_per_rank)
    found = on_processes(train, world_size, schedule, stages_per_rank, backend="ring")
    for rank, layers in enumerate(found):
        assert_alike(layers, expected[rank::world_size])
