"""Times the set-up of a group: the ring on one host, the ring with a host for each rank, and gloo.

    python benchmarks/setup_time.py --ranks 2,16,64 --output benchmarks/results/setup_time
    python benchmarks/setup_time.py --rehearse

The ranks are processes of this machine that have imported torch and are connected to one TCPStore.
In each round every contender sets up its group once, in turns, from a common start: `made` is when
the last rank returns from init_process_group, `used` when the last one has the sum of a first
all_reduce of one element, for an engine may connect no sooner. Medians over the rounds; the round
before them, in which libraries are loaded, is shown separately as `first`.

Hosts are played by name (RINGCOMM_HOSTID): ranks of different ones share no memory, and what they
say to each other goes over the links, on loopback. So this measures no network; and where there are
more ranks than cores, it measures how much work there is in setting up.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import header, listed, rotated, write_results

from ringcomm.arguments import number
from ringcomm.stores import local_store
from ringcomm.units import readable_seconds
from ringcomm.usage import FailedError, Parser

PATIENCE = 40.0  # seconds that a set-up may take
NOTE = "Until the group is made / until a first all_reduce is done, on the last rank; medians."
HEAD_START = 0.05  # seconds until a turn begins, so that all ranks have received it


@dataclass(frozen=True)
class Contender:
    backend: str
    has_hosts: bool = False  # each rank has its own
    links: str = "auto"


CONTENDERS = {
    "ring, one host": Contender("ring"),
    "ring, hosts, ucx": Contender("ring", True, "ucx"),
    "ring, hosts, gloo": Contender("ring", True, "gloo"),
    "gloo": Contender("gloo"),
}


@dataclass(frozen=True)
class Row:
    """A contender's times for a number of ranks, in seconds."""

    ranks: int
    contender: str
    made_s: float
    used_s: float
    min_used_s: float
    max_used_s: float
    first_used_s: float
    rounds: int


@dataclass(frozen=True)
class Turn:
    """The instruction to all ranks: to set up a group of one contender, beginning at `start`."""

    contender: str
    number: int
    start: float


def rank_main(connection: Connection, rank: int, world_size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port)
    connection.send("here")
    for turn in iter(connection.recv, None):
        try:
            connection.send(set_up(turn, rank, world_size, store))
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")


def set_up(turn: Turn, rank: int, world_size: int, store: dist.Store) -> tuple[float, float]:
    """When the group was made, and used."""
    contender = CONTENDERS[turn.contender]
    os.environ["RINGCOMM_LINKS"] = contender.links
    os.environ["RINGCOMM_HOSTID"] = f"host{rank}" if contender.has_hosts else "host"
    own = dist.PrefixStore(f"{turn.contender}/{turn.number}", store)
    tensor = torch.tensor([rank + 1.0])
    time.sleep(max(0.0, turn.start - time.monotonic()))
    dist.init_process_group(
        contender.backend,
        store=own,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=PATIENCE),
    )
    try:
        made = time.monotonic()
        dist.all_reduce(tensor)
        used = time.monotonic()
    finally:
        dist.destroy_process_group()
    if tensor.item() != world_size * (world_size + 1) / 2:
        raise FailedError(f"the sum is {tensor.item()}")
    return made, used


class Ranks:
    """Processes that wait to be connection."""

    def __init__(self, world_size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", "torch.distributed", "ringcomm"])
        self.store = local_store()
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(world_size):
            own, others = context.Pipe()
            arguments = (others, rank, world_size, self.store.port)
            process = context.Process(target=rank_main, args=arguments, daemon=True)
            process.start()
            others.close()
            self.connections.append(own)
            self.processes.append(process)
        self.answers()

    def turn(self, contender: str, number: int) -> tuple[float, float]:
        """Seconds until the last rank's group is made, and used."""
        turn = Turn(contender, number, time.monotonic() + HEAD_START)
        for connection in self.connections:
            connection.send(turn)
        made, used = zip(*self.answers(), strict=True)
        return max(made) - turn.start, max(used) - turn.start

    def answers(self) -> list[Any]:
        found = []
        for rank, connection in enumerate(self.connections):
            if not connection.poll(2 * PATIENCE):
                raise FailedError(f"rank {rank} is silent for {2 * PATIENCE:g} s")
            try:
                answer = connection.recv()
            except EOFError:
                raise FailedError(f"rank {rank} has died") from None
            if isinstance(answer, str) and answer != "here":
                raise FailedError(f"rank {rank}: {answer}")
            found.append(answer)
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def measure(
    world_size: int, contenders: Sequence[str], rounds: int, failed: list[str]
) -> list[Row]:
    """All contenders at one number of ranks. One that fails is left out, and added to `failed`."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    ranks = Ranks(world_size)
    try:
        for number in range(rounds + 1):
            names = list(times)
            for name in rotated(names, number):
                try:
                    times[name].append(ranks.turn(name, number))
                except FailedError as error:
                    print(f"{name} is left out of {world_size} ranks: {error}", flush=True)
                    failed.append(f"{name} of {world_size} ranks")
                    del times[name]
                    ranks.end()
                    ranks = Ranks(world_size)
    finally:
        ranks.end()
    rows = [row_of(world_size, name, its_times) for name, its_times in times.items()]
    for row in rows:
        made, used = readable_seconds(row.made_s), readable_seconds(row.used_s)
        print(f"{world_size:>4} ranks: {row.contender}: made {made}, used {used}", flush=True)
    return rows


def row_of(world_size: int, contender: str, times: Sequence[tuple[float, float]]) -> Row:
    made = [one for one, _ in times[1:]]
    used = [one for _, one in times[1:]]
    return Row(
        ranks=world_size,
        contender=contender,
        made_s=statistics.median(made),
        used_s=statistics.median(used),
        min_used_s=min(used),
        max_used_s=max(used),
        first_used_s=times[0][1],
        rounds=len(used),
    )


def markdown(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(row.contender for row in rows))
    lines = [f"| ranks | {' | '.join(names)} |", "|---:" * (len(names) + 1) + "|"]
    for world_size in dict.fromkeys(row.ranks for row in rows):
        found = {row.contender: row for row in rows if row.ranks == world_size}
        cells = [cell(found[name]) if name in found else "" for name in names]
        lines.append(f"| {world_size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: Row) -> str:
    return f"{readable_seconds(row.made_s)} / {readable_seconds(row.used_s)}"


def contender(text: str) -> str:
    names = {name.replace(", ", "-").replace(" ", "-"): name for name in CONTENDERS}
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
    return names[text]


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=listed(int), default="2,16,64", help="numbers of ranks")
    add("--contenders", type=listed(contender), help="such as ring-hosts-ucx,gloo; default: all")
    add("--rounds", type=number(1), default=5, help="turns of each contender, after a first one")
    add("--output", type=Path, help="writes OUTPUT.csv, .json and .md")
    add("--rehearse", action="store_true", help="little of all, in less than a minute")
    options = parser.parse_args(arguments)
    if options.rehearse:
        options.ranks, options.rounds = [2, 3], 2
    if min(options.ranks) < 1 or options.rounds < 1:
        parser.error("--ranks and --rounds are at least 1")
    if options.contenders is None:
        options.contenders = list(CONTENDERS)
    return options


def main() -> int:
    options = options_of()
    about = header()
    for name, value in about.items():
        print(f"{name}: {value}")
    rows: list[Row] = []
    failed: list[str] = []
    for world_size in options.ranks:
        rows += measure(world_size, options.contenders, options.rounds, failed)
        if failed:
            about["failed, so left out"] = "; ".join(failed)
        if options.output:
            write_results(options.output, Row, rows, about, NOTE, markdown(rows) + "\n")
    print("\n" + markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
