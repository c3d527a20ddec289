"""Ranks whose flight records are written to files, and reading and comparing those."""

from __future__ import annotations

import os
import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from programs import python
from ranks import Rank
from torch.distributed import PrefixStore

SHORT = timedelta(seconds=1)
PATIENCE = 60.0
# A script in which rank 2 hangs, for torchrun.
HANGS = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("ring", timeout=timedelta(seconds=3))
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 2:
    time.sleep(600)
dist.all_reduce(torch.ones(1000))
"""


def init(rank: Rank, timeout: timedelta = timedelta(seconds=PATIENCE)) -> None:
    dist.init_process_group(
        "ring",
        store=PrefixStore("default", rank.store),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timeout,
    )


def init_recorded(
    rank: Rank, folder: Path, timeout: timedelta = timedelta(seconds=PATIENCE)
) -> None:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / "rank_")
    init(rank, timeout)


def record(path: str | Path) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


def analysis(folder: Path, *options: str) -> str:
    """What `torchfrtrace` prints."""
    command = ("-m", "torch.distributed.flight_recorder.fr_trace")
    return python(*command, folder, *options, timeout=PATIENCE).stderr


def files_in(folder: Path) -> list[str]:
    """The names of the files that are complete: a rank may be writing its own once more."""
    return sorted(path.name for path in folder.glob("rank_*"))


def wait_for(path: Path) -> None:
    patience = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < patience, path
        time.sleep(0.01)
