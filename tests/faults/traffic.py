"""What ranks are at work in when a fault strikes: each operation, over and over.

`ROUNDS[name](lib, tensor, asynchronous)` carries one out on every rank of the default group, and
returns what is still to be waited for. `lib` is torch.distributed or ringcomm. In each, every rank
needs every other one sooner or later in the round, or in the next.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

import ringcomm

Works = list[Any]
Round = Callable[[ModuleType, torch.Tensor, bool], Works]


def pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]


def on_root(tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return tensors if dist.get_rank() == 0 else None


def all_reduce(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    return [lib.all_reduce(tensor, async_op=asynchronous)]


def broadcast(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    roots = range(dist.get_world_size())
    return [lib.broadcast(tensor, root, async_op=asynchronous) for root in roots]


def reduce(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    roots = range(dist.get_world_size())
    return [lib.reduce(tensor, root, async_op=asynchronous) for root in roots]


def all_gather(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    return [lib.all_gather(pieces(tensor), tensor, async_op=asynchronous)]


def all_gather_into_tensor(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    output = torch.cat(pieces(tensor))
    return [lib.all_gather_into_tensor(output, tensor, async_op=asynchronous)]


def reduce_scatter(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    return [lib.reduce_scatter(tensor, pieces(tensor), async_op=asynchronous)]


def reduce_scatter_tensor(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    return [lib.reduce_scatter_tensor(tensor, torch.cat(pieces(tensor)), async_op=asynchronous)]


def gather_and_scatter(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    outputs, inputs = pieces(tensor), pieces(tensor)
    return [
        lib.gather(tensor, on_root(outputs), 0, async_op=asynchronous),
        lib.scatter(torch.zeros_like(tensor), on_root(inputs), 0, async_op=asynchronous),
    ]


def all_to_all(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    return [lib.all_to_all(pieces(tensor), pieces(tensor), async_op=asynchronous)]


def all_to_all_single(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    output, tensor = torch.cat(pieces(tensor)), torch.cat(pieces(tensor))
    return [lib.all_to_all_single(output, tensor, async_op=asynchronous)]


def barrier(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    return [lib.barrier(async_op=asynchronous)]


def monitored_barrier(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    ringcomm.monitored_barrier()
    return []


def coalesced(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for _ in range(3):
            dist.all_reduce(tensor.clone())
    return [manager] if asynchronous else []


def objects(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    dist.all_gather_object([None] * dist.get_world_size(), {"rank": dist.get_rank()})
    return []


def messages(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    works: Works = [lib.irecv(torch.zeros_like(tensor), other, tag=1) for other in others]
    return works + [lib.isend(tensor, other, tag=1) for other in others]


def from_any_source(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    sends = [lib.isend(tensor, other) for other in others]
    for _ in others:
        lib.recv(torch.zeros_like(tensor))
    wait(sends)
    lib.barrier()  # what is sent in the next round must not be received in this one
    return []


def batches(lib: ModuleType, tensor: torch.Tensor, asynchronous: bool) -> Works:
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    calls = [lib.P2POp(lib.irecv, torch.zeros_like(tensor), other) for other in others]
    calls += [lib.P2POp(lib.isend, tensor, other) for other in others]
    return list(lib.batch_isend_irecv(calls))


ROUNDS: dict[str, Round] = {
    round.__name__: round
    for round in (
        all_reduce,
        broadcast,
        reduce,
        all_gather,
        all_gather_into_tensor,
        reduce_scatter,
        reduce_scatter_tensor,
        gather_and_scatter,
        all_to_all,
        all_to_all_single,
        barrier,
        monitored_barrier,
        coalesced,
        objects,
        messages,
        from_any_source,
        batches,
    )
}
COUNTS = [3, 1000, 20_000, 1_000_000]  # of float32: the first two travel with their announcement
UNDER_WAY = 4  # rounds that an asynchronous traffic has under way


@dataclass(frozen=True)
class Traffic:
    """Which operation, and how."""

    name: str
    count: int
    direct: bool
    asynchronous: bool
    shared: bool  # the tensors lie where peers reach them

    def run(self, rounds: int | None) -> None:
        """Forever, if `rounds` is None."""
        with ringcomm.shared_memory() if self.shared else contextlib.nullcontext():
            self._run(rounds)

    def _run(self, rounds: int | None) -> None:
        lib = ringcomm if self.direct else dist
        tensor = torch.zeros(self.count)
        under_way: list[Works] = []
        done = 0
        while rounds is None or done < rounds:
            under_way.append(ROUNDS[self.name](lib, tensor, self.asynchronous))
            if len(under_way) > (UNDER_WAY if self.asynchronous else 0):
                wait(under_way.pop(0))
            done += 1
        for works in under_way:
            wait(works)


def wait(works: Works) -> None:
    for work in works:
        if work is not None:
            work.wait()


def draw_traffic(draw: random.Random, names: Sequence[str] = tuple(ROUNDS)) -> Traffic:
    return Traffic(
        name=draw.choice(names),
        count=draw.choice(COUNTS),
        direct=draw.random() < 0.5,
        asynchronous=draw.random() < 0.5,
        shared=draw.random() < 0.5,
    )
