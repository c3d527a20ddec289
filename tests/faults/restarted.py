"""What torchrun runs: rank 1 dies before, in, and after set-up, and in the last attempt none.

    torchrun --nproc-per-node 3 --max-restarts 3 restarted.py DIRECTORY

In the last attempt each rank leaves a file of its name in DIRECTORY.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringcomm  # noqa: F401  (registers "ring")
from faults.dying_store import DyingStore, kill_oneself

TIMEOUT = timedelta(minutes=30)


def main() -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    store, rank, world_size = next(dist.rendezvous("env://", timeout=TIMEOUT))
    dies = rank == 1
    if dies and attempt == 0:
        kill_oneself()
    if dies and attempt == 1:
        store = DyingStore(store, 2)
    dist.init_process_group("ring", store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    for i in range(1000):
        if dies and attempt == 2 and i == 500:
            kill_oneself()
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        assert tensor[0] == world_size
    dist.destroy_process_group()
    Path(sys.argv[1], str(rank)).write_text(str(attempt))


if __name__ == "__main__":
    main()
