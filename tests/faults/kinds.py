"""What a step of a random program may do: how ranks call it, and what plain torch says it gives.

A kind reads `inputs` tensors of `input_share` times the step's count, and writes `outputs` tensors
of `output_share` times it; one without inputs works in place. `result` says what one rank's outputs
become, of what the tensors of all ranks held before: flat, None where they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from values import reduce_op, reduced

Tensors = list[torch.Tensor]


@dataclass
class Call:
    """One rank's part in a step."""

    lib: ModuleType  # torch.distributed or ringcomm
    group: Any
    index: int  # of this rank in the group
    n: int  # ranks in the group
    root: int  # index in the group
    op: str
    asynchronous: bool
    tag: int
    reads: Tensors
    writes: Tensors

    @property
    def global_root(self) -> int:
        return dist.get_global_rank(self.group, self.root)

    def global_rank(self, index: int) -> int:
        return dist.get_global_rank(self.group, index % self.n)

    def on_root(self, tensors: Tensors) -> Tensors | None:
        return tensors if self.index == self.root else None

    @property
    def common(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.asynchronous}


@dataclass
class Question:
    """What one rank is to hold after a step."""

    held: list[Tensors]  # by rank: its inputs, or, in place, its outputs
    index: int
    root: int
    op: str

    @property
    def n(self) -> int:
        return len(self.held)

    def column(self, number: int) -> Tensors:
        return [tensors[number] for tensors in self.held]

    def piece(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(self.n)[self.index] if tensor.numel() else tensor


@dataclass(frozen=True)
class Kind:
    tensors: Callable[[int], tuple[int, int, int, int]]
    call: Callable[[Call], Any]  # returns Works or None
    result: Callable[[Question], list[torch.Tensor] | None]
    reduces: bool = False
    flat_only: bool = False  # cuts its tensors along their first dimension
    may_overlap: bool = True  # what is being sent must not be received into


def all_reduce(c: Call) -> Any:
    return c.lib.all_reduce(c.writes[0], reduce_op(c.op), **c.common)


def reduce(c: Call) -> Any:
    return c.lib.reduce(c.writes[0], c.global_root, reduce_op(c.op), **c.common)


def broadcast(c: Call) -> Any:
    return c.lib.broadcast(c.writes[0], c.global_root, **c.common)


def all_gather(c: Call) -> Any:
    return c.lib.all_gather(c.writes, c.reads[0], **c.common)


def all_gather_into_tensor(c: Call) -> Any:
    return c.lib.all_gather_into_tensor(c.writes[0], c.reads[0], **c.common)


def reduce_scatter(c: Call) -> Any:
    return c.lib.reduce_scatter(c.writes[0], c.reads, reduce_op(c.op), **c.common)


def reduce_scatter_tensor(c: Call) -> Any:
    return c.lib.reduce_scatter_tensor(c.writes[0], c.reads[0], reduce_op(c.op), **c.common)


def gather(c: Call) -> Any:
    return c.lib.gather(c.reads[0], c.on_root(c.writes), c.global_root, **c.common)


def scatter(c: Call) -> Any:
    return c.lib.scatter(c.writes[0], c.on_root(c.reads), c.global_root, **c.common)


def all_to_all(c: Call) -> Any:
    return c.lib.all_to_all(c.writes, c.reads, **c.common)


def all_to_all_single(c: Call) -> Any:
    return c.lib.all_to_all_single(c.writes[0], c.reads[0], **c.common)


def barrier(c: Call) -> Any:
    return c.lib.barrier(**c.common)


def coalesced(each: Callable[[Call, int], Any]) -> Callable[[Call], Any]:
    def call(c: Call) -> Any:
        with dist._coalescing_manager(group=c.group, async_ops=c.asynchronous) as manager:
            for i in range(len(c.writes)):
                each(c, i)
        return manager if c.asynchronous else None

    return call


def each_all_reduce(c: Call, i: int) -> None:
    dist.all_reduce(c.writes[i], reduce_op(c.op), group=c.group)


def each_all_gather(c: Call, i: int) -> None:
    dist.all_gather_into_tensor(c.writes[i], c.reads[i], group=c.group)


def each_reduce_scatter(c: Call, i: int) -> None:
    dist.reduce_scatter_tensor(c.writes[i], c.reads[i], reduce_op(c.op), group=c.group)


def messages(c: Call) -> Any:
    """Two to the next rank, received from the previous one in the other order."""
    if c.n == 1:
        return None
    to, of = c.global_rank(c.index + 1), c.global_rank(c.index - 1)
    works = [c.lib.isend(c.reads[i], to, group=c.group, tag=c.tag + i) for i in (0, 1)]
    works += [c.lib.irecv(c.writes[i], of, group=c.group, tag=c.tag + i) for i in (1, 0)]
    return works


def from_any_source(c: Call) -> Any:
    if c.n == 1:
        return None
    to = c.global_rank(c.index + 1)
    work = c.lib.isend(c.reads[0], to, group=c.group, tag=c.tag)
    source = c.lib.recv(c.writes[0], None, group=c.group, tag=c.tag)
    assert source == c.global_rank(c.index - 1), source
    return work


def batch(c: Call) -> Any:
    if c.n == 1:
        return None
    to, of = c.global_rank(c.index + 1), c.global_rank(c.index - 1)
    isend, irecv = c.lib.isend, c.lib.irecv
    return c.lib.batch_isend_irecv(
        [c.lib.P2POp(isend, c.reads[i], to, c.group, c.tag + i) for i in (0, 1)]
        + [c.lib.P2POp(irecv, c.writes[i], of, c.group, c.tag + i) for i in (0, 1)]
    )


def refused(c: Call) -> Any:
    """The root's arguments are wrong, which it can know by itself."""
    op = dist.ReduceOp.BAND if c.index == c.root else dist.ReduceOp.SUM
    return c.lib.all_reduce(c.writes[0], op, **c.common)


def mismatched(c: Call) -> Any:
    """The root's count is another one, which no rank can know by itself."""
    if c.n == 1:
        return None
    tensor = c.writes[0]
    longer = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
    return c.lib.all_reduce(longer if c.index == c.root else tensor, **c.common)


def sums(q: Question) -> Tensors:
    return [reduced(q.column(i), q.op) for i in range(len(q.held[0]))]


def previous(q: Question) -> Tensors | None:
    return q.held[q.index - 1] if q.n > 1 else None


KINDS = {
    "all_reduce": Kind(lambda n: (0, 0, 1, 1), all_reduce, sums, reduces=True),
    "reduce": Kind(
        lambda n: (0, 0, 1, 1),
        reduce,
        lambda q: sums(q) if q.index == q.root else None,
        reduces=True,
    ),
    "broadcast": Kind(lambda n: (0, 0, 1, 1), broadcast, lambda q: q.held[q.root]),
    "all_gather": Kind(lambda n: (1, 1, n, 1), all_gather, lambda q: q.column(0)),
    "all_gather_into_tensor": Kind(
        lambda n: (1, 1, 1, n), all_gather_into_tensor, lambda q: [torch.cat(q.column(0))]
    ),
    "reduce_scatter": Kind(
        lambda n: (n, 1, 1, 1),
        reduce_scatter,
        lambda q: [reduced(q.column(q.index), q.op)],
        reduces=True,
    ),
    "reduce_scatter_tensor": Kind(
        lambda n: (1, n, 1, 1),
        reduce_scatter_tensor,
        lambda q: [q.piece(sums(q)[0])],
        reduces=True,
    ),
    "gather": Kind(
        lambda n: (1, 1, n, 1), gather, lambda q: q.column(0) if q.index == q.root else None
    ),
    "scatter": Kind(lambda n: (n, 1, 1, 1), scatter, lambda q: [q.held[q.root][q.index]]),
    "all_to_all": Kind(lambda n: (n, 1, n, 1), all_to_all, lambda q: q.column(q.index)),
    "all_to_all_single": Kind(
        lambda n: (1, n, 1, n),
        all_to_all_single,
        lambda q: [torch.cat([q.piece(tensor) for tensor in q.column(0)])],
        flat_only=True,
    ),
    "barrier": Kind(lambda n: (0, 0, 0, 0), barrier, lambda q: None),
    "coalesced_all_reduce": Kind(
        lambda n: (0, 0, 3, 1), coalesced(each_all_reduce), sums, reduces=True
    ),
    "coalesced_all_gather": Kind(
        lambda n: (2, 1, 2, n),
        coalesced(each_all_gather),
        lambda q: [torch.cat(q.column(i)) for i in (0, 1)],
    ),
    "coalesced_reduce_scatter": Kind(
        lambda n: (2, n, 2, 1),
        coalesced(each_reduce_scatter),
        lambda q: [q.piece(total) for total in sums(q)],
        reduces=True,
    ),
    "messages": Kind(lambda n: (2, 1, 2, 1), messages, previous, may_overlap=False),
    "from_any_source": Kind(lambda n: (1, 1, 1, 1), from_any_source, previous, may_overlap=False),
    "batch": Kind(lambda n: (2, 1, 2, 1), batch, previous, may_overlap=False),
    "refused": Kind(lambda n: (0, 0, 1, 1), refused, lambda q: None),
    "mismatched": Kind(lambda n: (0, 0, 1, 1), mismatched, lambda q: None),
}


def error_of(kind: str, index: int, root: int, n: int) -> str | None:
    """The name of what the rank raises."""
    if kind == "refused":
        return "ValueError" if index == root else "DistBackendError"
    return "DistBackendError" if kind == "mismatched" and n > 1 else None


def all_gather_object(c: Call, payload: Any) -> Any:
    gathered = [None] * c.n
    dist.all_gather_object(gathered, payload, group=c.group)
    return gathered


def broadcast_object_list(c: Call, payload: Any) -> Any:
    payloads = [payload if c.index == c.root else None]
    dist.broadcast_object_list(payloads, c.global_root, group=c.group)
    return payloads


def gather_object(c: Call, payload: Any) -> Any:
    gathered = [None] * c.n if c.index == c.root else None
    dist.gather_object(payload, gathered, c.global_root, group=c.group)
    return gathered


def scatter_object_list(c: Call, payload: Any) -> Any:
    received = [None]
    payloads = [(payload, i) for i in range(c.n)] if c.index == c.root else None
    dist.scatter_object_list(received, payloads, c.global_root, group=c.group)
    return received


# By name: the call, and what the rank of an index gets of all ranks' payloads.
OBJECTS: dict[str, tuple[Callable[[Call, Any], Any], Callable[[list[Any], int, int], Any]]] = {
    "all_gather_object": (all_gather_object, lambda payloads, index, root: payloads),
    "broadcast_object_list": (
        broadcast_object_list,
        lambda payloads, index, root: [payloads[root]],
    ),
    "gather_object": (
        gather_object,
        lambda payloads, index, root: payloads if index == root else None,
    ),
    "scatter_object_list": (
        scatter_object_list,
        lambda payloads, index, root: [(payloads[root], index)],
    ),
}
