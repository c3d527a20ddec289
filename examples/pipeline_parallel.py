"""Pipeline parallelism: every rank has some of the layers, and the data goes from rank to rank.

A batch is cut into micro-batches, so that the ranks can work at the same time. First the forward
pass alone, with messages that block; then training with two schedules, GPipe and 1F1B, where
messages travel while the ranks compute; last, torch's own schedules. All of them must give the
gradients of a single process.

    torchrun --nproc-per-node 4 examples/pipeline_parallel.py [--backend ring|gloo|nccl]
    python examples/pipeline_parallel.py
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist
from launch import device, launch, say, title
from torch import nn
from torch.autograd.function import Function
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from ringcomm import parallel

DIM, ROWS, MICROBATCHES = 64, 4, 8  # rows of one micro-batch
NAP = 0.005  # seconds


class _Nap(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(NAP)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(2 * NAP)
        return gradient


class Nap(nn.Module):
    """Takes time as large layers do, but no processor: there may be fewer of them than ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Nap.apply(x)


def make_stage(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), Nap()).double().to(device())


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100)
    shape = (2, MICROBATCHES * ROWS, DIM)
    inputs, targets = torch.randn(shape, generator=generator, dtype=torch.float64).to(device())
    return inputs, targets


def in_one_process() -> tuple[torch.Tensor, torch.Tensor, list[nn.Module]]:
    """Outputs, loss, and all stages, with their gradients, of the same micro-batches."""
    stages = [make_stage(number) for number in range(dist.get_world_size())]
    inputs, targets = (part.chunk(MICROBATCHES) for part in make_batch())
    outputs, loss = [], torch.zeros((), dtype=torch.float64, device=device())
    for input, target in zip(inputs, targets, strict=True):
        outputs.append(nn.Sequential(*stages)(input))
        part = functional.mse_loss(outputs[-1], target) / MICROBATCHES
        part.backward()
        loss += part.detach()
    return torch.cat(outputs).detach(), loss, stages


@torch.no_grad()
def forward_only(stage: nn.Module, expected: torch.Tensor) -> None:
    """Every rank receives a micro-batch from the one before, computes, and sends it on."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    inputs = make_batch()[0].chunk(MICROBATCHES)
    for number in range(MICROBATCHES):
        x = inputs[number] if rank == 0 else torch.empty_like(inputs[number])
        if rank > 0:
            dist.recv(x, src=rank - 1)
        x = stage(x)
        if rank < last:
            dist.send(x, dst=rank + 1)
        else:
            assert torch.equal(x, expected.chunk(MICROBATCHES)[number])
    say(f"computed {MICROBATCHES} micro-batches of {tuple(x.shape)}")


def train(schedule: parallel.Schedule, loss: torch.Tensor, reference: nn.Module) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    stage = make_stage(rank)
    pipeline = parallel.Pipeline(
        stage,
        functional.mse_loss,
        schedule,
        MICROBATCHES,
        input_shape=(ROWS, DIM),
        dtype=torch.float64,
        device=device(),
        gradient_group=dist.new_group() if dist.get_backend() == "nccl" else None,
    )
    pipeline.step(*make_batch())  # the first step sets up what the measured one is to find
    stage.zero_grad()
    found = pipeline.step(*make_batch())
    if found is not None:
        torch.testing.assert_close(found, loss, rtol=1e-14, atol=0)
    for ours, theirs in zip(stage.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # added up in the same order: the same bits

    timelines: list[list[parallel.Interval]] = [[] for _ in range(world_size)]
    dist.all_gather_object(timelines, pipeline.timeline)
    by_clock = parallel.bubble_fraction(
        [interval for timeline in timelines for interval in timeline]
    )
    # The same actions in the same order, if a forward takes one unit of time and a backward two.
    actions = [[interval.action for interval in timeline] for timeline in timelines]
    idealized = parallel.replay(actions)
    bubble = parallel.bubble_fraction(idealized)
    formula = (world_size - 1) / (MICROBATCHES + world_size - 1)
    if rank == 0:
        print(parallel.draw(idealized))
        print(f"idle {bubble:.1%}, by the clock {by_clock:.1%}; (p-1)/(m+p-1) = {formula:.1%}")
    say(f"gradients equal, {pipeline.peak_in_flight} micro-batches in flight at most")
    assert math.isclose(bubble, formula)
    in_flight = MICROBATCHES if schedule is parallel.gpipe else world_size - rank
    assert pipeline.peak_in_flight == min(in_flight, MICROBATCHES)


def by_torch(schedule: type[ScheduleGPipe | Schedule1F1B], reference: nn.Module) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = make_stage(rank)
    stage = PipelineStage(module, rank, world_size, device())
    runner = schedule(stage, MICROBATCHES, loss_fn=functional.mse_loss)
    inputs, targets = make_batch()
    runner.step(
        *([inputs] if rank == 0 else []),
        **({"target": targets} if rank == world_size - 1 else {}),
    )
    for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    say("gradients equal")


def main() -> None:
    rank = dist.get_rank()
    outputs, loss, stages = in_one_process()
    title("forward only, with send and recv")
    forward_only(make_stage(rank), outputs)
    title("GPipe: all forwards, then all backwards")
    train(parallel.gpipe, loss, stages[rank])
    title("1F1B: one forward, one backward")
    train(parallel.one_forward_one_backward, loss, stages[rank])
    for schedule in (ScheduleGPipe, Schedule1F1B):
        title(f"torch.distributed.pipelining's {schedule.__name__}")
        by_torch(schedule, stages[rank])


if __name__ == "__main__":
    launch(main, at_least=2)
