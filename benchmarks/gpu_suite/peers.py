"""Whether GPUs reach each other's memory, as CUDA says and as bytes show.

    python -m gpu_suite.peers PEERS.csv

A row for each ordered pair: whether CUDA lets the one reach the other's memory, how many bytes of a
pattern with the pair's number came back wrong from there, and how fast it copied. The links between
them, as nvidia-smi knows them, are printed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import torch
from common import write_csv

from gpu_suite import device, rehearsal

FIELDS = ("date", "gpu", "from", "to", "can_access", "wrong", "nbytes", "gb_per_s")
_NBYTES = 64 << 10 if rehearsal.ON else 64 << 20


def pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(count) for b in range(count) if a != b)


def pattern(number: int, index: int) -> torch.Tensor:
    numbers = torch.arange(_NBYTES // 4, dtype=torch.int32, device=device.of(index))
    return numbers * 2 + number


def tried(sender: int, receiver: int) -> dict[str, object]:
    """A pattern there and back again, and the time of a copy there."""
    sent = pattern(sender * torch.cuda.device_count() + receiver, sender)
    there = torch.empty_like(sent, device=device.of(receiver))
    there.copy_(sent)
    back = torch.zeros_like(sent).copy_(there)
    wrong = int((back != sent).sum()) * sent.element_size()
    torch.cuda.synchronize(sender)
    torch.cuda.synchronize(receiver)
    began = time.perf_counter()
    for _ in range(10):
        there.copy_(sent)
    torch.cuda.synchronize(sender)
    torch.cuda.synchronize(receiver)
    seconds = (time.perf_counter() - began) / 10
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": device.label(),
        "from": sender,
        "to": receiver,
        "can_access": torch.cuda.can_device_access_peer(sender, receiver),
        "wrong": wrong,
        "nbytes": _NBYTES,
        "gb_per_s": _NBYTES / seconds / 1e9,
    }


def main() -> int:
    path = Path(sys.argv[1])
    count = torch.cuda.device_count()
    topology = subprocess.run(["nvidia-smi", "topo", "-m"], text=True, capture_output=True)
    print(topology.stdout or topology.stderr)
    rows = [tried(sender, receiver) for sender, receiver in pairs(count)]
    write_csv(path, FIELDS, rows)
    unreached = [f"{row['from']} to {row['to']}" for row in rows if not row["can_access"]]
    damaged = [f"{row['from']} to {row['to']}" for row in rows if row["wrong"]]
    if unreached:
        print("CUDA gives no access, so that collectives go as messages:", ", ".join(unreached))
    if damaged:
        print("bytes came back wrong:", ", ".join(damaged))
    return 1 if damaged else 0


if __name__ == "__main__":
    sys.exit(main())
