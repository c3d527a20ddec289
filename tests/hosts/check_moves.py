"""Checks of the collectives that move data: tensors and objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from hosts.cases import COUNTS, KIB, Compared, Place, named, values


def broadcast(at: Place) -> Iterator[Compared]:
    for index, root in enumerate(at.ranks):
        for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.bool):
            for count in at.counts(dtype) if index == at.size - 1 else COUNTS:
                inputs = at.inputs(count, dtype, salt=index)
                tensor = inputs[at.index].clone()
                dist.broadcast(tensor, root, group=at.group)
                yield Compared(f"{count} {named(dtype)} from {root}", tensor, inputs[index])


def all_gather(at: Place) -> Iterator[Compared]:
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for count in at.counts(dtype):
            count = count if count <= 1000 else count // at.size
            inputs = at.inputs(count, dtype)
            case = f"{count} {named(dtype)}"
            outputs = [torch.zeros(count, dtype=dtype) for _ in inputs]
            dist.all_gather(outputs, inputs[at.index], group=at.group)
            yield Compared(f"list, {case}", torch.stack(outputs), torch.stack(inputs))
            output = torch.zeros(at.size * count, dtype=dtype)
            dist.all_gather_into_tensor(output, inputs[at.index], group=at.group)
            yield Compared(f"tensor, {case}", output, torch.cat(inputs))


def gather(at: Place) -> Iterator[Compared]:
    for index, root in enumerate(at.ranks):
        for count in [*COUNTS, 250 * KIB]:
            inputs = at.inputs(count, torch.float32, salt=index)
            outputs = [torch.zeros(count) for _ in inputs] if index == at.index else None
            dist.gather(inputs[at.index], outputs, root, group=at.group)
            if outputs is not None:
                yield Compared(f"{count} to {root}", torch.stack(outputs), torch.stack(inputs))


def scatter(at: Place) -> Iterator[Compared]:
    for index, root in enumerate(at.ranks):
        for count in [*COUNTS, 250 * KIB]:
            given = [values(root, count, torch.float32, to) for to in range(at.size)]
            output = torch.zeros(count)
            dist.scatter(output, given if index == at.index else None, root, group=at.group)
            yield Compared(f"{count} from {root}", output, given[at.index])


def all_to_all(at: Place) -> Iterator[Compared]:
    """Uneven splits, with empty ones among them."""
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for longest in (0, 1, 5, 60 * KIB):
            splits = [
                [at.random.randint(0, longest) for _ in range(at.size)] for _ in range(at.size)
            ]
            sent = [
                [values(rank, n, dtype, salt) for salt, n in enumerate(splits[i])]
                for i, rank in enumerate(at.ranks)
            ]
            case = f"up to {longest} {named(dtype)}"
            expected = torch.cat([row[at.index] for row in sent])
            received = [row[at.index] for row in splits]
            output = torch.zeros(sum(received), dtype=dtype)
            mine = torch.cat(sent[at.index])
            dist.all_to_all_single(output, mine, received, splits[at.index], group=at.group)
            yield Compared(f"single, {case}", output, expected)
            if at.offers("all_to_all", "list"):
                outputs = [torch.zeros(n, dtype=dtype) for n in received]
                dist.all_to_all(outputs, sent[at.index], group=at.group)
                yield Compared(f"list, {case}", torch.cat(outputs), expected)
        count = 100
        even = [values(rank, at.size * count, dtype, 9) for rank in at.ranks]
        output = torch.zeros(at.size * count, dtype=dtype)
        dist.all_to_all_single(output, even[at.index], group=at.group)
        expected = torch.cat([x.chunk(at.size)[at.index] for x in even])
        yield Compared(f"equal splits, {named(dtype)}", output, expected)


def objects(at: Place) -> Iterator[Compared]:
    def thing(rank: int) -> dict[str, Any]:
        return {"rank": rank, "text": "x" * (1000 * rank), "numbers": list(range(rank))}

    things = [thing(rank) for rank in at.ranks]
    gathered: list[Any] = [None] * at.size
    dist.all_gather_object(gathered, things[at.index], group=at.group)
    yield Compared("all_gather_object", gathered, things)
    for index, root in enumerate(at.ranks):
        held = [thing(99), "second"] if index == at.index else [None, None]
        dist.broadcast_object_list(held, root, group=at.group)
        yield Compared(f"broadcast_object_list from {root}", held, [thing(99), "second"])
        all_of_them = [None] * at.size if index == at.index else None
        dist.gather_object(things[at.index], all_of_them, root, group=at.group)
        if all_of_them is not None:
            yield Compared(f"gather_object to {root}", all_of_them, things)
        mine: list[Any] = [None]
        given = things if index == at.index else [None] * at.size
        dist.scatter_object_list(mine, given, root, group=at.group)
        yield Compared(f"scatter_object_list from {root}", mine, [things[at.index]])
