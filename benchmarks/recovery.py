"""Times how soon training goes on after a rank was killed: from the kill to the next good step.

    python benchmarks/recovery.py --nproc 4 --trials 50 --csv recovery.csv

Each trial starts new ranks, which train a small network with DistributedDataParallel. One of them,
in turn each, is killed by SIGKILL at a random time. The others notice, call ringcomm.shrink(), make
a new DDP and redo the step. All times count from the kill, to the last of the ranks:

    noticed    the step has raised
    shrunk     ringcomm.shrink() has returned
    stepped    the step is done
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from common import write_csv
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm.arguments import number
from ringcomm.host import processor
from ringcomm.stores import local_store
from ringcomm.units import readable_seconds
from ringcomm.usage import Parser

EVENTS = ("noticed", "shrunk", "stepped")
TIMEOUT = timedelta(seconds=60)
WARM_UP = 0.1  # seconds of training, at least, before a rank is killed


class Training:
    """A step of DDP on 1.2 MB of gradients."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)
        self.data = torch.randn(32, 64)
        self.join()

    def join(self) -> None:
        self.replicated = DistributedDataParallel(self.network)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.replicated(self.data).square().mean().backward()
        self.optimizer.step()


def train_through_a_death(
    rank: int, nproc: int, port: int, answer: multiprocessing.connection.Connection
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("ring", store=store, rank=rank, world_size=nproc, timeout=TIMEOUT)
    training = Training()
    training.step()
    answer.send("trains")
    try:
        while True:
            training.step()
    except dist.DistBackendError:
        times = [time.monotonic()]
    ringcomm.shrink()
    times.append(time.monotonic())
    training.join()
    training.step()
    times.append(time.monotonic())
    answer.send(times)
    dist.barrier()
    dist.destroy_process_group()


def trial(nproc: int, victim: int, delay: float) -> dict[str, float]:
    """Seconds from the kill to each of the events, on the last rank."""
    store = local_store()
    server = multiprocessing.get_context("forkserver")
    ranks, answers = [], []
    for rank in range(nproc):
        answer, other_end = server.Pipe(duplex=False)
        arguments = (rank, nproc, store.port, other_end)
        ranks.append(server.Process(target=train_through_a_death, args=arguments, daemon=True))
        ranks[-1].start()
        other_end.close()
        answers.append(answer)
    try:
        for answer in answers:
            answer.recv()
        time.sleep(delay)
        killed = time.monotonic()
        os.kill(ranks[victim].pid or 0, signal.SIGKILL)
        times = [answer.recv() for rank, answer in enumerate(answers) if rank != victim]
        for process in ranks:
            process.join()
        assert [process.exitcode for process in ranks].count(0) == nproc - 1
    finally:
        for process in ranks:
            process.kill()
    last = [max(column) - killed for column in zip(*times, strict=True)]
    return dict(zip(EVENTS, last, strict=True))


def print_summary(rows: list[dict[str, float]], nproc: int) -> None:
    table = Table(title=f"from the kill of one of {nproc} ranks, {len(rows)} times", box=None)
    for column in ("", "median", "worst"):
        table.add_column(column, justify="right")
    for event in EVENTS:
        times = [row[event] for row in rows]
        shown = (readable_seconds(statistics.median(times)), readable_seconds(max(times)))
        table.add_row(event, *shown)
    Console().print(table)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(2), default=4, help="ranks before the death")
    parser.add_argument("--trials", type=number(1), default=50)
    parser.add_argument("--csv", type=Path, help="where a line per trial is written")
    options = parser.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["torch._dynamo", "torch.distributed.tensor", "ringcomm"]
    )
    draw = random.Random(0)
    victims = itertools.islice(itertools.cycle(range(options.nproc)), options.trials)
    rows = [trial(options.nproc, victim, WARM_UP + draw.random() / 10) for victim in victims]
    print_summary(rows, options.nproc)
    if options.csv:
        about = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "cpu": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "torch": str(torch.__version__),
            "nproc": options.nproc,
        }
        fields = [*about, *(f"{event}_s" for event in EVENTS)]
        records = [{**about, **{f"{e}_s": row[e] for e in EVENTS}} for row in rows]
        write_csv(options.csv, fields, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
