"""Ranks whose flight records are written to files, and reading and comparing those."""

from __future__ import annotations

import os
import pickle
import struct
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


# ---- Records that are made ----------------------------------------------------------------------


def encoded(value: Any) -> bytes:
    """As csrc/core/flight_dump.cpp writes it."""
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"\x8a\x08" + struct.pack("<q", value)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            return b"".join(map(encoded, value)) + b"\x86"
        case list():
            return b"](" + b"".join(map(encoded, value)) + b"e"
        case dict():
            return b"}(" + b"".join(encoded(each) for item in value.items() for each in item) + b"u"
    raise TypeError(value)


def entry(sequence: int, **fields: Any) -> dict[str, Any]:
    """That of a call; of the second, `sequence` is the number that it has in its group."""
    return {
        "record_id": sequence - 1,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "is_p2p": False,
        "time_created_ns": sequence,
        "time_discovered_completed_ns": sequence + 1,
        "input_sizes": [[3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3]],
        "output_dtypes": ["Float"],
        "frames": [{"name": "step", "filename": "/home/me/train.py", "line": 7}],
        **fields,
    }


def content(entries: list[dict[str, Any]], **groups: str) -> dict[str, Any]:
    """`groups`: their ranks, by their names; the group 0 has two if nothing else is said."""
    config = {name: {"ranks": ranks} for name, ranks in {"0": "[0, 1]", **groups}.items()}
    return {"entries": entries, "pg_config": config}


def write(folder: Path, *ranks: list[dict[str, Any]], **groups: str) -> Path:
    """A file for each rank. All are in the group 0."""
    folder.mkdir()
    groups["0"] = str(list(range(len(ranks))))
    for rank, entries in enumerate(ranks):
        held = encoded(content(entries, **groups))
        (folder / f"rank_{rank}").write_bytes(b"\x80\x02" + held + b".")
    return folder
