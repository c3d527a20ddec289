"""One rank's stage of a pipeline, trained together with the ranks before and after it.

Each action of the schedule receives what it needs, computes, and sends what it yields. Messages
travel while the stage computes: the next receive is posted before a micro-batch is begun, and
no rank waits for a send before the end of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.distributed import ProcessGroup

from ringcomm.parallel._messages import Inbox, Outbox
from ringcomm.parallel._shares import rank_and_size
from ringcomm.parallel.schedules import Action, Schedule
from ringcomm.parallel.timeline import Interval, replay


class Pipeline:
    """The stage of a pipeline that this rank computes; the group's ranks are the stages, in order.

    Args:
        stage: computes a tensor from a tensor. Its outputs have one shape and dtype for all
            micro-batches.
        loss: loss(output, target) of one micro-batch, a scalar; the last stage calls it.
        schedule: gpipe, one_forward_one_backward, or your own.
        num_microbatches: into how many equal parts a batch is cut.
        input_shape: of one micro-batch as it comes to this stage from the one before; the first
            stage ignores it.
        dtype: of what comes to this stage.
        device: of what comes to this stage.
        group: the default group if not given.
        gradient_group: carries the gradients backward; `group` if not given. NCCL wants another
            group of the same ranks: it carries out all messages between two ranks in one order,
            and here the two directions have no common order.

    Attributes:
        timeline: the computations of the last step, without the time this rank waited, in seconds
            of a clock that the processes of a host share. On a GPU, when they were enqueued.
        peak_in_flight: of how many micro-batches the last step held the activations at once.

    Raises:
        ValueError: the schedule cannot be carried out.
    """

    def __init__(
        self,
        stage: nn.Module,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        schedule: Schedule,
        num_microbatches: int,
        input_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        group: ProcessGroup | None = None,
        gradient_group: ProcessGroup | None = None,
    ) -> None:
        self.rank, self.num_stages = rank_and_size(group)
        schedules = [
            schedule(number, self.num_stages, num_microbatches) for number in range(self.num_stages)
        ]
        for actions in schedules:
            _check_complete(actions, num_microbatches)
        replay(schedules)
        self._actions = schedules[self.rank]
        self.stage, self.loss = stage, loss
        self.num_microbatches = num_microbatches
        self.input_shape, self.dtype, self.device = tuple(input_shape), dtype, device
        self.group, self.gradient_group = group, gradient_group or group
        self.timeline: list[Interval] = []
        self.peak_in_flight = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.num_stages - 1

    def step(
        self, inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Forward and backward of one batch; all ranks call it.

        Adds to the parameters' gradients those of the mean of the micro-batches' losses. If the
        loss is a mean over its batch, that is the loss of the whole batch.

        Args:
            inputs: (batch, ...), on the first stage; the others ignore it.
            targets: (batch, ...), on the last stage; the others ignore it.

        Returns:
            The mean of the micro-batches' losses on the last stage, detached; None elsewhere.

        Raises:
            ValueError: the batch is missing, or cannot be cut into equal parts.
            torch.distributed.DistBackendError: as for send and recv.
        """
        step = _Step(
            self,
            self._cut(inputs, "inputs") if self.is_first else (),
            self._cut(targets, "targets") if self.is_last else (),
        )
        for action in self._actions:
            if action.phase == "forward":
                step.forward(action)
            else:
                step.backward(action)
        step.finish()
        self.timeline, self.peak_in_flight = step.timeline, step.peak_in_flight
        return torch.stack(step.losses).sum() if self.is_last else None

    def _cut(self, batch: torch.Tensor | None, what: str) -> tuple[torch.Tensor, ...]:
        if batch is None:
            raise ValueError(f"stage {self.rank} of {self.num_stages} needs {what}, got None")
        if batch.size(0) == 0 or batch.size(0) % self.num_microbatches:
            raise ValueError(
                f"the {what} are {batch.size(0)} rows, which cannot be cut into "
                f"{self.num_microbatches} equal micro-batches"
            )
        return batch.tensor_split(self.num_microbatches)


def _check_complete(actions: Sequence[Action], num_microbatches: int) -> None:
    wanted = [
        Action(phase, index)
        for phase in ("backward", "forward")
        for index in range(num_microbatches)
    ]
    if sorted(actions) != wanted:
        raise ValueError(
            f"a schedule of {num_microbatches} micro-batches must have one forward and one "
            f"backward of each, got {[f'{phase} {index}' for phase, index in actions]}"
        )


class _Step:
    """One step of a pipeline: its messages, and what lives between forward and backward."""

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: tuple[torch.Tensor, ...],
        targets: tuple[torch.Tensor, ...],
    ) -> None:
        self.pipeline, self.inputs, self.targets = pipeline, inputs, targets
        self.losses: list[torch.Tensor] = []
        self.timeline: list[Interval] = []
        self.peak_in_flight = 0
        # By micro-batch: what came in, and what went out of the stage.
        self.live: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        self.to_next = Outbox(pipeline.rank + 1, pipeline.group)
        self.to_previous = Outbox(pipeline.rank - 1, pipeline.gradient_group)
        self.from_previous: Inbox | None = None
        self.from_next: Inbox | None = None  # from the first forward on, which has the shape
        if not pipeline.is_first:
            self.from_previous = Inbox(
                pipeline.rank - 1,
                pipeline.num_microbatches,
                pipeline.input_shape,
                pipeline.dtype,
                pipeline.device,
                pipeline.group,
            )

    def forward(self, action: Action) -> None:
        pipeline, index = self.pipeline, action.microbatch
        if self.from_previous is None:
            input = self.inputs[index]
        else:
            input = self.from_previous.take().requires_grad_()
        begin = time.perf_counter()
        output = pipeline.stage(input)
        if pipeline.is_last:
            output = pipeline.loss(output, self.targets[index]) / pipeline.num_microbatches
            self.losses.append(output.detach())
        self._record(action, begin)
        self.live[index] = input, output
        self.peak_in_flight = max(self.peak_in_flight, len(self.live))
        if pipeline.is_last:
            return
        self.to_next.send(output)
        if self.from_next is None:
            self.from_next = Inbox(
                pipeline.rank + 1,
                pipeline.num_microbatches,
                output.shape,
                output.dtype,
                output.device,
                pipeline.gradient_group,
            )

    def backward(self, action: Action) -> None:
        input, output = self.live.pop(action.microbatch)
        gradient = None if self.from_next is None else self.from_next.take()
        begin = time.perf_counter()
        if output.requires_grad:  # unless this is a first stage whose parameters are frozen
            torch.autograd.backward(output, gradient)
        self._record(action, begin)
        if not self.pipeline.is_first:
            self.to_previous.send(torch.zeros_like(input) if input.grad is None else input.grad)

    def finish(self) -> None:
        self.to_next.flush()
        self.to_previous.flush()

    def _record(self, action: Action, begin: float) -> None:
        self.timeline.append(Interval(self.pipeline.rank, action, begin, time.perf_counter()))
