"""The pipeline engine: gradients of one process, messages ahead of the computation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch import nn
from torch.nn import functional

from ringcomm.parallel import (
    Action,
    Pipeline,
    Schedule,
    gpipe,
    one_forward_one_backward,
    replay,
)

DIM, ROWS = 6, 3
SCHEDULES = [gpipe, one_forward_one_backward]


def last_first(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """A schedule of one's own: backwards in the opposite order."""
    actions = gpipe(stage, num_stages, num_microbatches)
    return actions[:num_microbatches] + actions[num_microbatches:][::-1]


def make_stage(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()).double()


def make_batch(num_microbatches: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, num_microbatches * ROWS, DIM)
    inputs, targets = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs, targets


def pipeline_of(
    stage: nn.Module, schedule: Schedule, num_microbatches: int, **more: Any
) -> Pipeline:
    return Pipeline(
        stage,
        functional.mse_loss,
        schedule,
        num_microbatches,
        input_shape=(ROWS, DIM),
        dtype=torch.float64,
        **more,
    )


def equal_to_one_process(rank: Rank) -> None:
    for schedule in (*SCHEDULES, last_first):
        for num_microbatches in (1, 2, 7):
            stage = make_stage(rank.rank)
            pipeline = pipeline_of(stage, schedule, num_microbatches)
            whole = nn.Sequential(*(make_stage(number) for number in range(rank.world_size)))
            for step in range(2):  # the gradients of the second are added to those of the first
                inputs, targets = make_batch(num_microbatches, step)
                loss = functional.mse_loss(whole(inputs), targets)
                loss.backward()
                found = pipeline.step(
                    inputs if pipeline.is_first else None, targets if pipeline.is_last else None
                )
                assert (found is None) == (rank.rank + 1 < rank.world_size)
                if found is not None:
                    torch.testing.assert_close(found, loss.detach(), rtol=1e-12, atol=0)
            for ours, theirs in zip(stage.parameters(), whole[rank.rank].parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


def timeline_is_in_order(rank: Rank) -> None:
    """Nobody computes what has not been computed before it; all processes have one clock."""
    for schedule in SCHEDULES:
        pipeline = pipeline_of(make_stage(rank.rank), schedule, 5)
        pipeline.step(*make_batch(5))
        timelines: list[Any] = [None] * rank.world_size
        dist.all_gather_object(timelines, pipeline.timeline)
        actions = [[interval.action for interval in timeline] for timeline in timelines]
        assert actions == [schedule(s, rank.world_size, 5) for s in range(rank.world_size)]
        replay(actions)
        when = {(i.stage, i.action): i for timeline in timelines for i in timeline}
        for (number, action), interval in when.items():
            before = number - 1 if action.phase == "forward" else number + 1
            assert interval.begin < interval.end
            if 0 <= before < rank.world_size:
                assert when[before, action].end <= interval.begin
        in_flight = 5 if schedule is gpipe else min(5, rank.world_size - rank.rank)
        assert pipeline.peak_in_flight == in_flight


@contextlib.contextmanager
def recorded(stage: nn.Module) -> Iterator[list[str]]:
    """What happens in which order: "receive" is posted, "send" is begun, the stage "computes"."""
    events: list[str] = []
    irecv, isend = dist.irecv, dist.isend

    def receive(*arguments: Any, **more: Any) -> Any:
        events.append("receive")
        return irecv(*arguments, **more)

    def send(*arguments: Any, **more: Any) -> Any:
        events.append("send")
        return isend(*arguments, **more)

    handle = stage.register_forward_hook(lambda *_: events.append("compute"))
    with mock.patch.object(dist, "irecv", receive), mock.patch.object(dist, "isend", send):
        yield events
    handle.remove()


def messages_go_ahead(rank: Rank) -> None:
    stage = make_stage(rank.rank)
    with recorded(stage) as events:
        pipeline_of(stage, gpipe, 4).step(*make_batch(4))
    if rank.rank == rank.world_size - 1:
        forward = events[: events.index("send")]
        expected = ["receive", "receive", "compute"] + ["receive", "compute"] * 2 + ["compute"]
        assert forward == expected, "the next receive is posted before the stage computes"


def frozen_and_unused(rank: Rank) -> None:
    class Ignores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(DIM, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight.expand(ROWS, DIM)

    stage = make_stage(0).requires_grad_(False) if rank.rank == 0 else make_stage(1)
    pipeline_of(stage, one_forward_one_backward, 4).step(*make_batch(4))
    assert all((p.grad is None) == (rank.rank == 0) for p in stage.parameters())

    stage = make_stage(0) if rank.rank == 0 else Ignores()
    pipeline_of(stage, one_forward_one_backward, 4).step(*make_batch(4))
    if rank.rank == 0:
        assert all(not p.grad.any() for p in stage.parameters())


def in_groups(rank: Rank) -> None:
    """Two pipelines side by side, with gradients in groups of their own."""
    groups = [[dist.new_group([0, 2]), dist.new_group([1, 3])] for _ in range(2)]
    group, gradient_group = (pair[rank.rank % 2] for pair in groups)
    number, seed = rank.rank // 2, rank.rank % 2
    stage = make_stage(number)
    pipeline = pipeline_of(
        stage, one_forward_one_backward, 4, group=group, gradient_group=gradient_group
    )
    inputs, targets = make_batch(4, seed)
    pipeline.step(inputs, targets)
    whole = nn.Sequential(make_stage(0), make_stage(1))
    functional.mse_loss(whole(inputs), targets).backward()
    for ours, theirs in zip(stage.parameters(), whole[number].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


def refusals(rank: Rank) -> None:
    forward, backward = [Action("forward", 0)], [Action("backward", 0)]
    pipeline = pipeline_of(make_stage(0), gpipe, 4)
    with pytest.raises(ValueError, match="stage 0 of 1 needs inputs, got None"):
        pipeline.step()
    with pytest.raises(ValueError, match=r"the inputs are 6 rows.*4 equal micro-batches"):
        pipeline.step(torch.zeros(6, DIM), torch.zeros(6, DIM))
    with pytest.raises(ValueError, match="the targets are 0 rows"):
        pipeline.step(torch.zeros(8, DIM), torch.zeros(0, DIM))
    with pytest.raises(ValueError, match="num_microbatches=0"):
        pipeline_of(make_stage(0), gpipe, 0)
    for actions in ([], forward, forward * 2 + backward, forward + backward * 2):
        with pytest.raises(ValueError, match="one forward and one backward of each, got"):
            pipeline_of(make_stage(0), lambda *_, actions=actions: actions, 1)
    with pytest.raises(ValueError, match="waits for ever"):
        pipeline_of(make_stage(0), lambda *_: backward + forward, 1)


def in_turn(rank: Rank, checks: list[Any]) -> None:
    for check in checks:
        check(rank)


@pytest.mark.parametrize(
    ("world_size", "checks"),
    [
        (1, [equal_to_one_process, refusals]),
        (2, [equal_to_one_process, frozen_and_unused]),
        (4, [equal_to_one_process, timeline_is_in_order, messages_go_ahead, in_groups]),
    ],
)
def test_ranks(world_size: int, checks: list[Any]) -> None:
    on_processes(in_turn, world_size, checks, backend="ring")
