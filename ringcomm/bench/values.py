"""Fills buffers with numbers whose results are known, and counts what is wrong afterwards.

Inputs are small integers, chosen so that sums and products are exact in every dtype, whatever the
order of the additions: results are compared for equality, as nccl-tests does for integers. Only an
average may be rounded, once per operation.
"""

from __future__ import annotations

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


def fill(case: Case, input: torch.Tensor, output: torch.Tensor) -> None:
    """Writes this rank's input, and to the rest of the output what hardly any result is."""
    output.fill_(101)
    input.copy_(_input(case, case.rank))


def count_wrong(case: Case, output: torch.Tensor) -> int:
    """How many elements of this rank's output differ from the right result."""
    expected = _expected(case)
    if expected is None:
        return 0
    got = output.cpu().to(torch.float64 if case.dtype.is_floating_point else torch.int64)
    if case.op == "avg" and case.dtype.is_floating_point:
        # Each of up to n operations rounds once, in the type itself at worst.
        allowed = expected.abs() * case.world_size * torch.finfo(case.dtype).eps
        return int(((got - expected).abs().nan_to_num(torch.inf) > allowed).sum())
    return int((got != expected).sum())


def _input(case: Case, rank: int) -> torch.Tensor:
    """What `rank` contributes, in float64 or int64 on the CPU."""
    count = case.count * (case.world_size if case.collective.input_chunks else 1)
    index = torch.arange(count)
    n = case.world_size
    exact = min(_EXACT.get(case.dtype, _LARGEST * n), _LARGEST * n)
    if case.op == "prod":
        values = 1 + ((index + rank) % n == 0).long()  # the product is 2
    elif case.op in ("sum", "avg") and exact < n:
        values = ((index + rank) % n < exact).long()  # the sum is `exact`
    else:
        values = (index + 7 * rank) % (exact // n + 1)
    return values.double() if case.dtype.is_floating_point else values


def _expected(case: Case) -> torch.Tensor | None:
    """This rank's output, in float64 or int64 on the CPU; None if it has none."""
    n, rank, name = case.world_size, case.rank, case.collective.name
    own = slice(rank * case.count, (rank + 1) * case.count)
    if name == "barrier" or (name in ("reduce", "gather") and rank != case.root):
        return None
    if name in ("all_reduce", "reduce"):
        return _reduced(case)
    if name == "reduce_scatter":
        return _reduced(case)[own]
    if name in ("all_gather", "gather"):
        return torch.cat([_input(case, other) for other in range(n)])
    if name == "broadcast":
        return _input(case, case.root)
    if name == "scatter":
        return _input(case, case.root)[own]
    if name == "all_to_all":
        return torch.cat([_input(case, other)[own] for other in range(n)])
    return _input(case, (rank - 1) % n)  # sendrecv


def _reduced(case: Case) -> torch.Tensor:
    result = _input(case, 0)
    for rank in range(1, case.world_size):
        other = _input(case, rank)
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
