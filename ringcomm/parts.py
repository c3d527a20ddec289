"""Sums of parts that are divided among the ranks, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from ringcomm import _C
from ringcomm._delegate import on_ring
from ringcomm.groups import unwrapped

_CPU = torch.device("cpu")


class PairSum:
    """A sum of tensors that come one after the other: neighbours first, then neighbouring pairs.

    Floats of 16 and 8 bits are added in float32. A power of two of tensors waits at each level, and
    a pass over them makes one sum of the level above.
    """

    _AT_ONCE = 8

    def __init__(self) -> None:
        self._levels: list[list[torch.Tensor]] = [[]]
        self.count = 0

    def add(self, tensor: torch.Tensor) -> None:
        """Takes in the next tensor, which must not change until it is added."""
        self.count += 1
        self._levels[0].append(tensor.detach().to(wide(tensor.dtype)).contiguous())
        for level, waiting in enumerate(self._levels):
            if len(waiting) < self._AT_ONCE:
                break
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(_added(waiting))
            waiting.clear()

    def total(self) -> torch.Tensor:
        """The sum of all, a new tensor; the next one begins."""
        above: list[torch.Tensor] = []
        for waiting in self._levels:
            above = [_added(waiting + above)] if waiting or above else []
        self._levels, self.count = [[]], 0
        return above[0]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which tensors of a type are added: float32 for floats of 16 and 8 bits."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def _added(tensors: list[torch.Tensor]) -> torch.Tensor:
    if tensors[0].device == _CPU:
        return _C.add_in_pairs(tensors)
    while len(tensors) > 1:
        sums = [a + b for a, b in zip(tensors[::2], tensors[1::2], strict=False)]
        tensors = sums + tensors[2 * len(sums) :]
    return tensors[0].clone()


def check_promise(group: Any, what: str) -> None:
    """Refuses a group whose sums may depend on the number of ranks.

    Raises:
        ValueError: it is not of the backend "ring" with reproducible="world".
    """
    backend = unwrapped(group._get_backend(torch.device(group._device_types[0])))
    promised = getattr(backend, "reproducible", backend.name())
    if promised != "world":
        raise ValueError(
            f'{what} is for groups of "ring" with reproducible="world", and this one has '
            f'"{promised}"; pass ringcomm.new_group(reproducible="world"), or set '
            'RINGCOMM_REPRODUCIBLE=world or init(reproducible="world")'
        )


def _total(parts: Iterable[torch.Tensor], group: Any) -> tuple[PairSum, torch.Tensor]:
    """The sum of this rank's parts, and one of them. What is raised here, the others raise, too."""
    check_promise(group, "sum_of_parts")
    total, first = PairSum(), None
    is_kept = isinstance(parts, list | tuple)  # else the next part may be in the same memory
    for part in parts:
        if not isinstance(part, torch.Tensor) or part.layout != torch.strided:
            raise TypeError(f"parts must be dense tensors, got {part!r:.200}")
        first = part if first is None else first
        if (part.shape, part.dtype, part.device) != (first.shape, first.dtype, first.device):
            raise ValueError(
                f"parts must be alike, and part {total.count} is {_described(part)} where part 0 "
                f"is {_described(first)}"
            )
        total.add(part if is_kept else part.clone())
    if first is None:
        raise ValueError("parts must hold at least one tensor, got none")
    world_size = dist.get_world_size(group)
    if world_size > 1 and total.count & (total.count - 1):
        raise ValueError(
            f"among {world_size} ranks, the number of a rank's parts must be a power of two, got "
            f"{total.count}"
        )
    return total, first


def _described(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"


def _sum_of_parts(parts: Iterable[torch.Tensor], group: Any = None) -> torch.Tensor:
    # Whatever can fail on one rank alone comes before the first call.
    total, first = _total(parts, group)
    counts = torch.tensor([total.count, -total.count], device=first.device)
    sum_, result = total.total(), torch.empty(first.shape, dtype=first.dtype, device=first.device)
    dist.all_reduce(counts, ReduceOp.MAX, group)
    most, least = counts[0].item(), -counts[1].item()
    if most != least:
        raise ValueError(
            f"every rank must have as many parts as the others, and they have {least} to {most}"
        )
    dist.all_reduce(sum_, ReduceOp.SUM, group)
    return result.copy_(sum_)


_on_ring = on_ring(_sum_of_parts, sends_objects=True)


def sum_of_parts(parts: Iterable[torch.Tensor], group: ProcessGroup | None = None) -> torch.Tensor:
    """The sum of all ranks' parts, with bits that do not depend on the number of ranks.

    A sum has a fixed number of parts, such as the gradients of 8 micro-batches or the products of 4
    parts of a matrix. The ranks have them in order: rank 0 the first ones, rank 1 the next ones.
    One rank with 8 parts, 2 ranks with 4 and 8 with 1 get the same bits:

        ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))

    Floats of 16 and 8 bits are added in float32, between the ranks too, and rounded once. No
    gradient flows back through the sum.

    Args:
        parts: of this rank: dense tensors of one shape, dtype and device, the same on all ranks. As
            many as every other rank has: any number in a group of one rank, otherwise a power of
            two. They may come one by one, from a generator; then only few are kept.
        group: with ``reproducible="world"``; the default group if not given.

    Returns:
        A new tensor, like one of the parts.

    Raises:
        TypeError: a part is not a dense tensor.
        ValueError: the group promises less, the parts are not alike, or their number is not as
            above. All ranks raise: those whose own parts are right,
            torch.distributed.DistBackendError.
        torch.distributed.DistBackendError: as `ringcomm.collectives` says.
    """
    return _on_ring(parts, group=group)
