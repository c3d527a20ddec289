"""One rank of a trace: what it records, and what rank 0 makes of all records."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import ringcomm
from ringcomm.cli.traces import write_trace

TIMEOUT = timedelta(seconds=120)
_WARM_UP = 3  # all-reduces

Event = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What one rank did.

    Attributes:
        base: nanoseconds that the events' microseconds count from.
        events: of Chrome's trace format, the rank in place of the process.
    """

    base: int
    events: list[Event]


def run(options: argparse.Namespace) -> None:
    """Records all-reduces; rank 0 writes the file and says so."""
    torch.set_num_threads(1)
    ringcomm.init(TIMEOUT)
    tensor = torch.zeros(max(1, options.size // 4))

    def all_reduces(count: int) -> None:
        for _ in range(count):
            dist.all_reduce(tensor)

    all_reduces(_WARM_UP)
    write(record(lambda: all_reduces(options.iters)), options.output, "CPU")
    ringcomm.barrier()
    ringcomm.destroy_process_group()


def record(job: Callable[[], object], cuda: bool = False) -> Record:
    """Runs the job under torch's profiler, on all ranks at once."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        ringcomm.barrier()
        job()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        document = json.loads(file.read_text(errors="replace"))
    rank, own_pid = dist.get_rank(), os.getpid()
    named = {"ph": "M", "pid": rank, "tid": 0}
    events: list[Event] = [
        {**named, "name": "process_name", "args": {"name": f"rank {rank}"}},
        {**named, "name": "process_sort_index", "args": {"sort_index": rank}},
    ]
    for event in document["traceEvents"]:
        if event.get("ph") == "M" or not isinstance(event.get("pid"), int):
            continue
        event["pid"] = rank if event["pid"] == own_pid else f"rank {rank}, GPU {event['pid']}"
        if "id" in event:
            event["id"] = f"{rank}:{event['id']}"  # arrows are not to lead to other ranks
        events.append(event)
    return Record(document.get("baseTimeNanoseconds", 0), events)


def write(mine: Record, output: Path, device: str) -> None:
    """Gathers the records of all ranks, which all call it, and writes them as one trace."""
    records: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(records, mine)
    if dist.get_rank() != 0:
        return
    events = merged(records)
    write_trace(output, events, f"{len(records)} ranks, {contents(events)}", {"device": device})


def contents(events: Sequence[Event]) -> str:
    """What there is to see: kernels where there are GPUs, which know nothing of steps."""
    if kernels := sum(event.get("cat") == "kernel" for event in events):
        return f"{kernels} kernels"
    steps = {event["name"] for event in events if str(event["name"]).startswith("step ")}
    return f"{len(steps)} steps and slices"


def merged(records: Sequence[Record]) -> list[Event]:
    """The events of all ranks on one clock, that begins with the first of them."""
    base = min(record.base for record in records)
    events = []
    for each in records:
        later = (each.base - base) / 1e3
        for event in each.events:
            events.append({**event, "ts": event["ts"] + later} if "ts" in event else event)
    start = min((event["ts"] for event in events if "ts" in event), default=0.0)
    return [{**event, "ts": event["ts"] - start} if "ts" in event else event for event in events]
