"""Checks of collectives that are under way together."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from values import reduced

from hosts.cases import KIB, Compared, Findings, Place


def asynchronous(at: Place) -> Iterator[Compared]:
    """Several at once, awaited in another order."""
    counts = [1, 1000, 70 * KIB, 7, 300 * KIB]
    inputs = [at.inputs(count, torch.float32, salt) for salt, count in enumerate(counts)]
    tensors = [each[at.index].clone() for each in inputs]
    works = [dist.all_reduce(tensor, group=at.group, async_op=True) for tensor in tensors]
    outputs = [torch.zeros(at.size * count) for count in counts]
    for tensor, output in zip(inputs, outputs, strict=True):
        works.append(
            dist.all_gather_into_tensor(output, tensor[at.index], group=at.group, async_op=True)
        )
    for work in at.random.sample(works, len(works)):
        work.wait()
    for count, each, tensor, output in zip(counts, inputs, tensors, outputs, strict=True):
        yield Compared(f"all_reduce of {count}", tensor, reduced(each, "SUM"))
        yield Compared(f"all_gather of {count}", output, torch.cat(each))


def coalesced(at: Place) -> Iterator[Compared]:
    counts = [3, 1000, 50 * KIB]
    inputs = [at.inputs(count, torch.float32, salt) for salt, count in enumerate(counts)]
    for kind in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        if not at.offers("coalesced", kind):
            continue
        for async_ops in (False, True):
            outputs, expected = [], []
            with dist._coalescing_manager(group=at.group, async_ops=async_ops) as manager:
                for each in inputs:
                    mine = each[at.index].clone()
                    if kind == "all_reduce":
                        outputs.append(mine)
                        expected.append(reduced(each, "SUM"))
                        dist.all_reduce(mine, group=at.group)
                    elif kind == "all_gather_into_tensor":
                        outputs.append(torch.zeros(at.size * len(mine)))
                        expected.append(torch.cat(each))
                        dist.all_gather_into_tensor(outputs[-1], mine, group=at.group)
                    else:
                        outputs.append(torch.zeros(len(mine)))
                        expected.append(reduced(each, "SUM"))
                        whole = mine.repeat(at.size)
                        dist.reduce_scatter_tensor(outputs[-1], whole, group=at.group)
            if async_ops:
                manager.wait()
            for count, ours, right in zip(counts, outputs, expected, strict=True):
                yield Compared(f"{kind} of {count}, async {async_ops}", ours, right)


def groups_at_once(places: list[Place], findings: Findings) -> None:
    """Each rank has operations of all its groups under way at the same time."""
    started = []
    for number in range(5):
        for place in places:
            inputs = place.inputs(20 * KIB + number, torch.float32, number)
            tensor = inputs[place.index].clone()
            work = dist.all_reduce(tensor, group=place.group, async_op=True)
            started.append((number, place, inputs, tensor, work))
    for number, place, inputs, tensor, work in started:
        work.wait()
        found = Compared(f"all_reduce {number}", tensor, reduced(inputs, "SUM"))
        findings.add("groups_at_once", place, found)
