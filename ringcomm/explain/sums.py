"""The sums that a plan's chunks are, and whether they are those of reproducible groups."""

from __future__ import annotations

from collections import defaultdict

import torch

from ringcomm.plan.plans import REDUCTIONS, Plans
from ringcomm.plan.table import numbered

_MOST_LINES = 8
_LONGEST = 200  # characters of a sum in a line


def sums(plans: Plans) -> dict[str, str]:
    """Each sum by its chunks, such as "chunks 0-2, 5"; none of plans that only move data.

    Raises:
        PlanError: the plans are wrong.
    """
    if plans.collective not in REDUCTIONS:
        return {}
    chunks = defaultdict(list)
    for chunk, each in plans.association().items():
        chunks[each].append(chunk)
    return {numbered("chunk", numbers): str(each) for each, numbers in chunks.items()}


def lines(plans: Plans) -> list[str]:
    """The sums of a reduction for a terminal, at most 8 of them, and whether it is reproducible.

    Raises:
        PlanError: the plans are wrong.
    """
    found = sums(plans)
    if not found:
        return []
    shown = [f"{chunks}: {_shortened(text)}" for chunks, text in found.items()]
    if len(shown) > _MOST_LINES:
        shown[_MOST_LINES:] = [f"... and {len(shown) - _MOST_LINES} more sums"]
    return [*shown, _verdict(plans)]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _verdict(plans: Plans) -> str:
    if difference := plans.association_difference(torch.float32):
        return f"not reproducible: {difference}"
    if difference := plans.association_difference(torch.bfloat16):
        return f"reproducible, but not for floats of 16 and 8 bits: {difference}"
    return "reproducible for every dtype"
