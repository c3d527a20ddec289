"""A stage's messages with one neighbour: tensors of one shape, in order, while it computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work


class Inbox:
    """Receives `count` tensors of one shape from a rank of a group.

    Invariant: until all have arrived, exactly one receive is posted and not yet taken.
    """

    def __init__(
        self,
        source: int,
        count: int,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
        group: ProcessGroup | None,
    ) -> None:
        self._source, self._group = source, group
        self._unposted = count
        self._shape, self._dtype, self._device = shape, dtype, device
        self._post()

    def take(self) -> torch.Tensor:
        """Waits for the next tensor, and lets the one after it come meanwhile."""
        tensor, work = self._posted
        work.wait()
        if self._unposted:
            self._post()
        return tensor

    def _post(self) -> None:
        tensor = torch.empty(tuple(self._shape), dtype=self._dtype, device=self._device)
        work = dist.irecv(tensor, group=self._group, group_src=self._source)
        assert work is not None  # None is for ranks outside of the group
        self._posted = tensor, work
        self._unposted -= 1


class Outbox:
    """Sends tensors to a rank of a group.

    Invariant: a tensor is kept until its send is complete.
    """

    def __init__(self, destination: int, group: ProcessGroup | None) -> None:
        self._destination, self._group = destination, group
        self._pending: list[tuple[torch.Tensor, Work]] = []

    def send(self, tensor: torch.Tensor) -> None:
        """Starts to send; the tensor must not change from now on."""
        self._pending = [(kept, work) for kept, work in self._pending if not work.is_completed()]
        tensor = tensor.detach().contiguous()
        work = dist.isend(tensor, group=self._group, group_dst=self._destination)
        assert work is not None  # None is for ranks outside of the group
        self._pending.append((tensor, work))

    def flush(self) -> None:
        """Waits until everything is sent."""
        for _, work in self._pending:
            work.wait()
        self._pending.clear()
