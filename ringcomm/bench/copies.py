"""How fast this machine copies memory, as a mark for collectives: what a rank receives has to be
written at least once. In place, where what is written was just read, a copy can be a little slower.
"""

from __future__ import annotations

import time

import torch

import ringcomm

_LEAST_NBYTES = 1 << 22  # copied in one sample, so that the clock does not matter


def copy_bandwidth(nbytes: int, device: torch.device, samples: int = 7) -> float:
    """Bytes copied per second by each rank while all ranks copy; all ranks call it.

    Args:
        nbytes: of the buffer that is copied to another one, again and again.

    Returns:
        By the median over the samples of the slowest rank's time; only the copied bytes count, not
        that they are read and written.
    """
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    repeats = max(1, _LEAST_NBYTES // nbytes)
    taken = torch.zeros(samples + 1, dtype=torch.float64)
    for index in range(samples + 1):
        ringcomm.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken[index] = time.perf_counter() - start
    ringcomm.all_reduce(taken, ringcomm.ReduceOp.MAX)
    return nbytes * repeats / float(taken[1:].median())
