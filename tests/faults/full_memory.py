"""One of the ranks of test_full_memory.py that run in PID namespaces of their own.

    python -m faults.full_memory DIRECTORY RANK WORLD_SIZE

They meet in a file in DIRECTORY, and leave there what they saw.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringcomm  # noqa: F401  (registers "ring")

SMALL, LARGE = 100, 2_000_000  # elements of float32
DONE = "done"


def make_a_group(store: dist.Store, rank: int, world_size: int) -> None:
    timeout = timedelta(minutes=10)
    dist.init_process_group("ring", store=store, rank=rank, world_size=world_size, timeout=timeout)


def reduce(count: int) -> None:
    tensor = torch.ones(count)
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()


def seen_of(store: dist.Store, rank: int, world_size: int) -> str:
    """How far it comes, and the error."""
    at = "init_process_group"
    try:
        make_a_group(store, rank, world_size)
        at = "a small sum"
        reduce(SMALL)
        at = "a large sum"
        reduce(LARGE)
    except dist.DistBackendError as error:
        return f"{at}: {error}"
    return DONE


def main() -> None:
    directory, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = dist.FileStore(str(directory / "store"), world_size)
    (directory / f"seen {rank}").write_text(seen_of(store, rank, world_size))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
