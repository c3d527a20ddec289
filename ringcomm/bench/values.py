"""Fills buffers with numbers whose results are known, and counts what is wrong afterwards.

Inputs are small integers, chosen so that sums and products are exact in every dtype, whatever the
order of the additions: results are compared for equality, as nccl-tests does for integers. Only an
average may be rounded, once per operation.

They repeat after a few hundred elements, and so does every result: one period stands for all of a
chunk, and a check of a large tensor is one pass over it that needs no second tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ringcomm.bench.cases import Case

# The largest integer up to which a type holds all integers.
_EXACT = {
    torch.int8: 127,
    torch.uint8: 255,
    torch.int16: 32767,
    torch.float16: 2048,
    torch.bfloat16: 256,
    torch.float8_e4m3fn: 16,
    torch.float8_e5m2: 8,
}
_LARGEST = 1000  # of the inputs, where the type holds more
_PIECE = 1 << 16  # elements compared at a time, for which caches have room


def fill(case: Case, input: torch.Tensor, output: torch.Tensor) -> None:
    """Writes this rank's input, and to the rest of the output what hardly any result is."""
    output.fill_(101)
    for chunk in range(case.world_size if case.collective.input_chunks else 1):
        begin = chunk * case.count
        period = _input(case, case.rank, begin).to(case.dtype)
        for piece, values in _beside(input[begin : begin + case.count], period):
            piece.copy_(values)


def count_wrong(case: Case, output: torch.Tensor) -> int:
    """How many elements of this rank's output differ from the right result."""
    wide = torch.float64 if case.dtype.is_floating_point else torch.int64
    wrong = 0
    for chunk, period in enumerate(_expected(case)):
        begin = chunk * case.count
        for piece, expected in _beside(output[begin : begin + case.count], period):
            got = piece.to(wide)
            if case.op == "avg" and case.dtype.is_floating_point:
                # Each of up to n operations rounds once, in the type itself at worst.
                allowed = expected.abs() * case.world_size * torch.finfo(case.dtype).eps
                wrong += int(((got - expected).abs().nan_to_num(torch.inf) > allowed).sum())
            else:
                wrong += int((got != expected).sum())
    return wrong


def _beside(
    tensor: torch.Tensor, period: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The tensor piece by piece, each with its part of `period` repeated without end."""
    tile = period.to(tensor.device).repeat(max(1, _PIECE // period.numel()))
    for begin in range(0, tensor.numel(), tile.numel()):
        piece = tensor[begin : begin + tile.numel()]
        yield piece, tile[: piece.numel()]


def _period(case: Case) -> int:
    """After how many elements values repeat."""
    n = case.world_size
    if case.op == "prod" or (case.op in ("sum", "avg") and _exact(case) < n):
        return n
    return _exact(case) // n + 1


def _exact(case: Case) -> int:
    most = _LARGEST * case.world_size
    return min(_EXACT.get(case.dtype, most), most)


def _input(case: Case, rank: int, begin: int = 0) -> torch.Tensor:
    """One period, from element `begin` on, of what `rank` contributes: float64 or int64, on CPU."""
    n = case.world_size
    index = torch.arange(begin, begin + _period(case))
    if case.op == "prod":
        values = 1 + ((index + rank) % n == 0).long()  # the product is 2
    elif case.op in ("sum", "avg") and _exact(case) < n:
        values = ((index + rank) % n < _exact(case)).long()  # the sum is the largest exact number
    else:
        values = (index + 7 * rank) % _period(case)
    return values.double() if case.dtype.is_floating_point else values


def _expected(case: Case) -> list[torch.Tensor]:
    """One period of each chunk of this rank's output, if it has any; float64 or int64, on CPU."""
    n, rank, name = case.world_size, case.rank, case.collective.name
    own = rank * case.count  # where this rank's chunk begins
    if name == "barrier" or (name in ("reduce", "gather") and rank != case.root):
        return []
    if name in ("all_reduce", "reduce"):
        return [_reduced(case, 0)]
    if name == "reduce_scatter":
        return [_reduced(case, own)]
    if name in ("all_gather", "gather"):
        return [_input(case, other) for other in range(n)]
    if name == "broadcast":
        return [_input(case, case.root)]
    if name == "scatter":
        return [_input(case, case.root, own)]
    if name == "all_to_all":
        return [_input(case, other, own) for other in range(n)]
    if name == "sendrecv":
        return [_input(case, (rank - 1) % n)]
    return [] if case.partner is None else [_input(case, min(rank, case.partner))]  # pingpong


def _reduced(case: Case, begin: int) -> torch.Tensor:
    result = _input(case, 0, begin)
    for rank in range(1, case.world_size):
        other = _input(case, rank, begin)
        if case.op in ("sum", "avg"):
            result += other
        elif case.op == "prod":
            result *= other
        elif case.op == "min":
            result = torch.minimum(result, other)
        elif case.op == "max":
            result = torch.maximum(result, other)
        elif case.op == "band":
            result &= other
        elif case.op == "bor":
            result |= other
        else:
            result ^= other
    if case.op == "avg" and case.dtype.is_floating_point:
        result /= case.world_size
    elif case.op == "avg":
        result = result.div(case.world_size, rounding_mode="trunc")
    return result
