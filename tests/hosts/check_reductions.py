"""Checks of the collectives that reduce."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from values import reduce_op, reduced

from hosts.cases import COUNTS, FLOATS, INTEGERS, LARGE, Compared, Place, named, uneven


def ops_of(dtype: torch.dtype) -> list[str]:
    if dtype == torch.bool:
        return ["SUM", "MIN", "BAND", "BOR"]
    if dtype.is_floating_point:
        return ["SUM", "PRODUCT", "MIN", "MAX", "AVG", "PREMUL_SUM"]
    return ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def close_enough(op: str, dtype: torch.dtype) -> float:
    """Averages of 3 are rounded, in more than one right way."""
    return 2 * torch.finfo(dtype).eps if op == "AVG" else 0.0


def all_reduce(at: Place) -> Iterator[Compared]:
    for dtype in [*FLOATS, *INTEGERS, torch.bool]:
        for op in ops_of(dtype):
            if not (at.offers("dtype", named(dtype)) and at.offers("op", op)):
                continue
            for count in at.counts(dtype) if op == "SUM" else COUNTS:
                inputs = at.inputs(count, dtype)
                tensor = inputs[at.index].clone()
                dist.all_reduce(tensor, reduce_op(op), group=at.group)
                case = f"{op} of {count} {named(dtype)}"
                expected = reduced(inputs, op)
                yield Compared(case, tensor, expected, close_enough(op, dtype), digest=True)


def all_reduce_rounded(at: Place) -> Iterator[Compared]:
    for dtype in FLOATS:
        for count in at.counts(dtype):
            inputs = [uneven(rank, count, dtype) for rank in at.ranks]
            tensor = inputs[at.index].clone()
            dist.all_reduce(tensor, group=at.group)
            expected = reduced(inputs, "SUM")
            close = at.size * torch.finfo(dtype).eps
            yield Compared(f"{count} {named(dtype)}", tensor, expected, close, digest=True)


def reduce(at: Place) -> Iterator[Compared]:
    for index, root in enumerate(at.ranks):
        for op in ("SUM", "MAX"):
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                for count in COUNTS + (LARGE["quick"] if at.large and index == 1 else []):
                    inputs = at.inputs(count, dtype, salt=index)
                    tensor = inputs[at.index].clone()
                    dist.reduce(tensor, root, reduce_op(op), group=at.group)
                    if index == at.index:
                        case = f"{op} of {count} {named(dtype)} to {root}"
                        yield Compared(case, tensor, reduced(inputs, op))


def reduce_scatter(at: Place) -> Iterator[Compared]:
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for op in ("SUM", "MAX"):
            for count in at.counts(dtype) if op == "SUM" else COUNTS:
                count = count if count <= 1000 else count // at.size
                inputs = at.inputs(at.size * count, dtype)
                expected = reduced([x.chunk(at.size)[at.index] if count else x for x in inputs], op)
                case = f"{op} of {count} {named(dtype)}"
                output = torch.zeros(count, dtype=dtype)
                mine = inputs[at.index].clone()
                if at.offers("reduce_scatter", "list"):
                    parts = list(mine.reshape(at.size, count).unbind())
                    dist.reduce_scatter(output, parts, reduce_op(op), group=at.group)
                    yield Compared(f"list, {case}", output, expected)
                output = torch.zeros(count, dtype=dtype)
                dist.reduce_scatter_tensor(output, mine, reduce_op(op), group=at.group)
                yield Compared(f"tensor, {case}", output, expected)
