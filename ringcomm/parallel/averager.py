"""Data parallelism: averaging gradients over the ranks while backward still computes others.

Backward reaches the last layers first, so the parameters are put into buckets from last to first.
As soon as all gradients of a bucket are there, its all-reduce starts and runs beside the rest of
backward. Few large messages instead of many small ones save the latencies.

Invariant: every rank starts the buckets in the same order, 0, 1, 2, ..., each once per step; a
bucket that is ready early waits for its turn. So the ranks' all-reduces match even if autograd runs
in different orders on different ranks.

S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 13(12),
2020, section 3.2.
"""

# No "from __future__ import annotations": DDP compares the hook's annotations with classes.
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup, ReduceOp, Work


def average_hook(
    group: ProcessGroup | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for DistributedDataParallel: averages its buckets by one AVG all-reduce.

    torch's own hook divides first and then sums, which rounds twice in low precision.

        model.register_comm_hook(None, average_hook)
    """
    future = _average(bucket.buffer(), group).get_future()
    return cast("torch.futures.Future[torch.Tensor]", future.then(lambda done: done.value()[0]))


def _average(tensor: torch.Tensor, group: ProcessGroup | None) -> Work:
    return dist.all_reduce(tensor, ReduceOp.AVG, group, async_op=True)


class GradientAverager:
    """Averages the gradients of parameters over the ranks of a group.

        averager = GradientAverager(model.parameters())
        for batch in batches:
            optimizer.zero_grad()
            loss(model(batch)).backward()  # all-reduces start here
            averager.finish()              # and have ended here
            optimizer.step()

    The parameters must be the same on all ranks at the start, in values and order. A parameter
    without a gradient on this rank counts as zero, and has a gradient afterwards.

    Args:
        parameters: those that require no gradient are left out.
        group: the default group if not given.
        bucket_nbytes: a bucket is closed when it holds this much, or where dtype or device change.
        backwards: how many times backward adds to each gradient before it is complete, such as the
            number of micro-batches.

    Raises:
        ValueError: no parameter requires a gradient, or a number is not positive.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: ProcessGroup | None = None,
        *,
        bucket_nbytes: int = 25 << 20,
        backwards: int = 1,
    ) -> None:
        if bucket_nbytes < 1 or backwards < 1:
            raise ValueError(
                "bucket_nbytes and backwards must be positive, got "
                f"bucket_nbytes={bucket_nbytes} and backwards={backwards}"
            )
        wanted = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        if not wanted:
            raise ValueError("there is no parameter that requires a gradient")
        self._group = group
        self._backwards = backwards
        self._buckets = [_Bucket.of(part) for part in _parts(wanted[::-1], bucket_nbytes)]
        self._bucket_of: dict[torch.Tensor, _Bucket] = {
            parameter: bucket for bucket in self._buckets for parameter in bucket.parameters
        }
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._count)  # type: ignore[no-untyped-call]
            for parameter in wanted
        ]
        self._begin_step()

    @property
    def num_buckets(self) -> int:
        return len(self._buckets)

    @property
    def num_started(self) -> int:
        """How many buckets are under way, or done, in this step."""
        return len(self._works)

    def finish(self) -> None:
        """Starts what has not started, and waits until all gradients are averages.

        Raises:
            torch.distributed.DistBackendError: as all_reduce does.
        """
        while self.num_started < self.num_buckets:
            self._start_next()
        for bucket, work in zip(self._buckets, self._works, strict=True):
            work.wait()
            bucket.unpack()
        self._begin_step()

    def close(self) -> None:
        """Lets go of the parameters: backward no longer starts anything."""
        for hook in self._hooks:
            hook.remove()

    def _begin_step(self) -> None:
        self._works: list[Work] = []
        self._missing: dict[torch.Tensor, int] = dict.fromkeys(self._bucket_of, self._backwards)
        for bucket in self._buckets:
            bucket.num_incomplete = len(bucket.parameters)

    def _count(self, parameter: torch.Tensor) -> None:
        """One backward has added to a parameter's gradient."""
        self._missing[parameter] -= 1
        if self._missing[parameter] < 0:
            raise RuntimeError(
                f"backward reached a parameter more than {self._backwards} times in one step; "
                "call finish() after each step, and set `backwards` to accumulate"
            )
        if self._missing[parameter] == 0:
            self._bucket_of[parameter].num_incomplete -= 1
        while (
            self.num_started < self.num_buckets
            and self._buckets[self.num_started].num_incomplete == 0
        ):
            self._start_next()

    def _start_next(self) -> None:
        bucket = self._buckets[self.num_started]
        bucket.pack()
        self._works.append(_average(bucket.buffer, self._group))


@dataclass
class _Bucket:
    parameters: list[nn.Parameter]
    num_incomplete: int  # gradients that backward still adds to
    buffer: torch.Tensor  # all gradients, one after the other
    views: list[torch.Tensor]  # of the buffer, in the parameters' shapes

    @classmethod
    def of(cls, parameters: list[nn.Parameter]) -> "_Bucket":
        counts = [parameter.numel() for parameter in parameters]
        buffer = torch.empty(sum(counts), dtype=parameters[0].dtype, device=parameters[0].device)
        views = [
            part.view_as(parameter)
            for part, parameter in zip(torch.split(buffer, counts), parameters, strict=True)
        ]
        return cls(parameters, len(parameters), buffer, views)

    def pack(self) -> None:
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)

    def unpack(self) -> None:
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                parameter.grad = view.clone()
            else:
                parameter.grad.copy_(view)


def _parts(parameters: list[nn.Parameter], nbytes: int) -> list[list[nn.Parameter]]:
    parts: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in parameters:
        last = parts[-1][-1] if parts else None
        if (
            last is None
            or filled >= nbytes
            or (last.dtype, last.device) != (parameter.dtype, parameter.device)
        ):
            parts.append([])
            filled = 0
        parts[-1].append(parameter)
        filled += parameter.numel() * parameter.element_size()
    return parts
