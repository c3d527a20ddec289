"""Gradients of micro-batches whose mean has bits that do not depend on the number of ranks."""

from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup

from ringcomm.parts import PairSum, check_promise


class Microbatches:
    """What `microbatch_hook` keeps from one micro-batch of a step to the next.

    Args:
        count: of a rank's micro-batches in a step, a power of two. With several ranks, rank 0 has
            the first ones of the batch, rank 1 the next ones, and so on.
        group: that of the model, with ``reproducible="world"``; the default group if not given.

    Raises:
        ValueError: the count is not a power of two, or the group promises less.
    """

    def __init__(self, count: int, group: ProcessGroup | None = None) -> None:
        if count < 1 or count & (count - 1):
            raise ValueError(f"count must be a power of two, got {count}")
        check_promise(group or dist.group.WORLD, "microbatch_hook")
        self.count = count
        self.group = group
        self._sums: dict[torch.Tensor, PairSum] = {}

    def add(self, bucket: GradBucket) -> bool:
        """Adds the gradients of a micro-batch; true if those of the step are complete."""
        is_complete = False
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            total = self._sums.setdefault(parameter, PairSum())
            # Backward adds to 0 where there is a gradient already, which makes +0 of -0.
            total.add(gradient + 0.0)
            is_complete = total.count == self.count
        return is_complete

    def total(self, bucket: GradBucket) -> torch.Tensor:
        """The sums of all micro-batches, in the order of the bucket."""
        sums = [self._sums.pop(parameter).total() for parameter in bucket.parameters()]
        return torch.cat([each.flatten() for each in sums])


def microbatch_hook(state: Microbatches, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for DistributedDataParallel: the mean over a batch's micro-batches.

    The gradients of micro-batches are added in pairs, within a rank and between ranks, as
    `ringcomm.sum_of_parts` adds parts. So 1, 2, 4, ... ranks that share the same micro-batches have
    the same gradients, to the bit. Between micro-batches the gradients are zero.

        model.register_comm_hook(Microbatches(4), microbatch_hook)
        for batch in batches:
            optimizer.zero_grad()
            for microbatch in batch:  # 4 of them, without no_sync()
                loss(model(microbatch)).backward()
            optimizer.step()

    The parameters must have the same bits at the start. A micro-batch has the same gradient on any
    rank if its shape, the machine's instructions and the number of threads are the same.
    """
    buffer = bucket.buffer()
    if not state.add(bucket):
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer.zero_())
        return done
    total = state.total(bucket)
    num_parts = state.count * dist.get_world_size(state.group)
    future = dist.all_reduce(total, group=state.group, async_op=True).get_future()
    return cast(
        "torch.futures.Future[torch.Tensor]",
        future.then(lambda _: buffer.copy_(total.div_(num_parts))),
    )
