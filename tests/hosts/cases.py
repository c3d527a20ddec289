"""What a check of the collectives is made of: a place, inputs, and comparisons."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

KIB, MIB = 1 << 10, 1 << 20
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]
# The counts of small cases; those of large ones, in bytes, are for the whole world only.
COUNTS = [0, 1, 7, 1000]
LARGE = {"quick": [MIB], "all": [MIB, 33 * MIB]}
LARGE_DTYPES = [torch.float32, torch.bfloat16]
PERIOD = 65537  # of large inputs: prime, so that no two slices are alike


@dataclass
class Place:
    """A group, as one of its ranks sees it."""

    name: str
    group: Any  # of torch.distributed
    ranks: list[int]  # of the world, in the group's order
    large: list[int]  # bytes
    offers: Callable[[str, str], bool]
    random: random.Random  # the same numbers on each of the ranks

    @property
    def index(self) -> int:
        return self.ranks.index(dist.get_rank())

    @property
    def size(self) -> int:
        return len(self.ranks)

    def counts(self, dtype: torch.dtype) -> list[int]:
        large = self.large if dtype in LARGE_DTYPES else []
        return COUNTS + [nbytes // dtype.itemsize for nbytes in large]

    def inputs(self, count: int, dtype: torch.dtype, salt: int = 0) -> list[torch.Tensor]:
        """What each rank of the group puts in. Sums and products of it are exact in any dtype."""
        return [values(rank, count, dtype, salt) for rank in self.ranks]


@dataclass
class Compared:
    """What arrived, and what should have.

    Args:
        close: the relative error that is allowed; 0: every bit is to be right.
        digest: all ranks of the group are to have the same bits.
    """

    case: str
    actual: Any
    expected: Any
    close: float = 0.0
    digest: bool = False


@dataclass
class Findings:
    wrong: list[str] = field(default_factory=list)
    cases: Counter[str] = field(default_factory=Counter)
    digests: dict[str, str] = field(default_factory=dict)

    def add(self, check: str, place: Place, found: Compared) -> None:
        case = f"{check} in {place.name}: {found.case}"
        self.cases[check] += 1
        difference = difference_of(found.actual, found.expected, found.close)
        if difference:
            self.wrong.append(f"{case}: {difference}")
        if found.digest:
            self.digests[case] = hashlib.sha256(raw(found.actual)).hexdigest()[:16]


def values(rank: int, count: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7919 * rank + 31 * salt + count % 97)
    drawn = min(count, PERIOD)
    number = torch.randint(1, 3, (drawn,), generator=generator)
    sign = torch.randint(0, 2, (drawn,), generator=generator)
    if dtype == torch.bool:
        return repeated(sign > 0, count)
    return repeated((number if dtype == torch.uint8 else number * (2 * sign - 1)).to(dtype), count)


def uneven(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Values whose sums are rounded."""
    generator = torch.Generator().manual_seed(104729 * rank + count % 97)
    drawn = torch.randn(min(count, PERIOD), generator=generator, dtype=torch.float64)
    return repeated(drawn.to(dtype), count)


def repeated(block: torch.Tensor, count: int) -> torch.Tensor:
    return block if len(block) == count else block.repeat(-(-count // len(block)))[:count]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def difference_of(actual: Any, expected: Any, close: float) -> str:
    """What differs, or nothing."""
    if not isinstance(expected, torch.Tensor):
        return "" if actual == expected else f"{actual!r}, not {expected!r}"
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype} {list(actual.shape)}, not {expected.dtype} {list(expected.shape)}"
    if raw(actual) == raw(expected):
        return ""
    if close:
        # To what is added, not to the sum, which may be next to nothing.
        error = (actual.double() - expected.double()).abs().max() / max(
            1.0, expected.double().abs().max().item()
        )
        return "" if error <= close else f"an error of {error:.1e}, more than {close:.1e}"
    differing = (actual != expected).reshape(-1)
    at = int(differing.nonzero()[0]) if differing.any() else -1
    return (
        f"{int(differing.sum())} of {actual.numel()} elements differ, the first at {at}: "
        f"{actual.reshape(-1)[at]}, not {expected.reshape(-1)[at]}"
    )


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
