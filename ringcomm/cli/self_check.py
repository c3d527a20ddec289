"""One rank of the doctor's self-check; exit code 0 if the ring gives the right sums."""

from __future__ import annotations

from datetime import timedelta

import torch

import ringcomm

TIMEOUT = timedelta(seconds=20)
COUNTS = (1, 1000, 1_000_003)  # the last in several slices
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def main() -> None:
    """Raises if a result is wrong, or an operation does not end in time."""
    ringcomm.init(TIMEOUT)
    rank, world_size = ringcomm.get_rank(), ringcomm.get_world_size()
    for dtype in DTYPES:
        for count in COUNTS:
            numbers = torch.arange(count) % 100
            tensor = (numbers + rank).to(dtype)
            ringcomm.all_reduce(tensor)
            expected = world_size * numbers + sum(range(world_size))
            if not torch.equal(tensor, expected.to(dtype)):
                raise RuntimeError(f"all_reduce of {count} elements of {dtype} gave a wrong sum")
    ringcomm.barrier()
    ringcomm.destroy_process_group()


if __name__ == "__main__":
    main()
