"""Times all-reduces of several kinds in one run, in turn, so that all see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

import ringcomm

AllReduce = Callable[[torch.Tensor], object]  # sums in place

_CPU = torch.device("cpu")
_SAMPLE_NBYTES = 1 << 18  # what a sample moves at least, so that the clock and the barrier vanish
_MOST_REPEATS = 50


def median_seconds(
    kinds: Mapping[str, AllReduce],
    nbytes: int,
    samples: int = 11,
    device: torch.device = _CPU,
) -> dict[str, float]:
    """The median time of one all-reduce, per kind. All ranks call it, and get the same.

    A sample starts after a barrier, takes as long as the slowest rank, and is taken of each kind
    in turn; it holds several calls if they are small.

    Args:
        kinds: what to time, by name; all sum float32 over the default group.
        nbytes: of the tensor, a multiple of 4.
        samples: how many per kind, after one that does not count.
        device: where the tensor is; a GPU's stream is drained within each sample.

    Raises:
        RuntimeError: a sum is wrong, before the samples or after them.
    """
    tensor = torch.zeros(nbytes // 4, device=device)
    repeats = min(_MOST_REPEATS, max(1, _SAMPLE_NBYTES // nbytes))
    taken = torch.zeros(1 + samples, len(kinds), dtype=torch.float64)
    for name, all_reduce in kinds.items():
        _check_sum(name, all_reduce, tensor)
    for sample in taken:
        for index, all_reduce in enumerate(kinds.values()):
            tensor.zero_()
            _drain(device)
            ringcomm.barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                all_reduce(tensor)
            _drain(device)
            sample[index] = (time.perf_counter() - start) / repeats
    for name, all_reduce in kinds.items():
        _check_sum(name, all_reduce, tensor)
    ringcomm.all_reduce(taken, ringcomm.ReduceOp.MAX)
    medians = [statistics.median(column) for column in taken[1:].T.tolist()]
    return dict(zip(kinds, medians, strict=True))


def _drain(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _check_sum(name: str, all_reduce: AllReduce, tensor: torch.Tensor) -> None:
    # Small integers, so that the sum is exact.
    numbers = torch.arange(tensor.numel(), device=tensor.device) % 1000
    world_size = ringcomm.get_world_size()
    tensor.copy_(numbers + ringcomm.get_rank())
    all_reduce(tensor)
    expected = world_size * numbers + sum(range(world_size))
    if not torch.equal(tensor, expected.to(tensor.dtype)):
        raise RuntimeError(f"{name}: the sum of {tensor.numel()} elements is wrong")
