"""Inputs whose reductions have one right answer in every bit, and that answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
REDUCED = [*FLOATS, *INTEGERS, torch.bool]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [*REDUCED, *COMPLEX, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fnuz]

# Multiples of 1 / scale up to limit / scale fill the dtype's significand, so that sums of a few
# are exact in float32 but not in the dtype.
_LIMIT_AND_SCALE = {
    torch.float64: (1000, 8),
    torch.float32: (1000, 8),
    torch.float16: (2047, 1024),
    torch.bfloat16: (255, 128),
    torch.float8_e4m3fn: (15, 8),
    torch.float8_e5m2: (7, 4),
}

PREMUL = 0.5

EVERYWHERE = ["SUM", "PRODUCT", "MIN", "MAX"]
BITWISE = ["BAND", "BOR", "BXOR"]


def ops_for(dtype: torch.dtype) -> list[str]:
    if dtype in FLOATS:
        return [*EVERYWHERE, "AVG", "PREMUL_SUM"]
    return [*EVERYWHERE, *BITWISE] if dtype == torch.bool else [*EVERYWHERE, *BITWISE, "AVG"]


def reduce_op(op: str) -> ReduceOp:
    return dist._make_nccl_premul_sum(PREMUL) if op == "PREMUL_SUM" else getattr(ReduceOp, op)


def values(rank: int, count: int, dtype: torch.dtype, op: str = "SUM") -> torch.Tensor:
    """`count` values of a rank."""
    generator = torch.Generator().manual_seed(100 * rank + count % 97)

    def integers(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high + 1, (count,), generator=generator)

    if dtype == torch.bool:
        return integers(0, 3) > 0
    if dtype.is_complex:
        return torch.complex(integers(-99, 99).double(), integers(-99, 99).double()).to(dtype)
    if dtype not in FLOATS:
        return integers(0 if dtype.is_signed is False else -9, 9).to(dtype)
    if op == "PRODUCT":
        return integers(-2, 2).double().to(dtype)
    limit, scale = _LIMIT_AND_SCALE[dtype]
    return (integers(-limit, limit).double() / scale).to(dtype)


def reduced(inputs: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """What the ranks' inputs reduce to: computed exactly, then rounded once."""
    dtype = inputs[0].dtype
    wide = torch.stack([x.to(_wide(dtype)) for x in inputs])
    if op == "SUM":
        result = wide.any(0) if dtype == torch.bool else wide.sum(0)
    elif op == "PREMUL_SUM":
        contributions = (wide * PREMUL).to(dtype)  # as the other ranks receive them
        result = contributions.to(wide.dtype).sum(0)
    elif op == "AVG":
        result = _divided(wide.sum(0), len(inputs), dtype)
    elif op == "PRODUCT":
        result = wide.prod(0)
    elif op in ("MIN", "MAX"):
        result = getattr(wide, f"a{op.lower()}")(0)
    else:
        bitwise = {
            "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or,
            "BXOR": torch.bitwise_xor,
        }[op]
        result = wide[0]
        for x in wide[1:]:
            result = bitwise(result, x)
    return result.to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    if dtype.is_floating_point:
        return torch.float64
    return torch.bool if dtype == torch.bool else torch.int64


def _divided(total: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.div(total, n, rounding_mode="trunc")
    if dtype.is_complex:  # each part by itself: a complex division rounds differently
        return torch.complex(total.real / n, total.imag / n)
    # Narrow sums are divided in float32, and rounded to the dtype after that.
    return total / n if dtype.itemsize >= 4 else total.float() / n


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, case: object = "") -> None:
    """dtype, shape and every byte are equal."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, case
    if _bytes(actual) != _bytes(expected):
        raise AssertionError(f"{case}: got {actual}, expected {expected}")


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


torch_2_14 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14),
    reason="before 2.14, torch itself keeps this from other backends than its own",
)
