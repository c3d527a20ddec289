"""Times all_reduce of float32 between hosts: the ring, gloo and Open MPI over networks of any rate.

    python benchmarks/across_hosts.py --hosts 2x2 --rates 1gbit --delays 0,1
    python benchmarks/across_hosts.py --rehearse

The hosts are namespaces of this machine (tests/hosts/), joined by cables of the given rate and
delay; this needs root. All contenders are there at once and take turns, so that what else the
machine does meets them all. A time is that from a common start until the last rank is done, a
median over the rounds. A turn begins with a call that is not timed, for after the others' turns TCP
sends slowly at first; `--cold` times that instead. Where much is under way at once, a network can
be fast or slow for as long as it lasts: `--networks` makes several, and medians are over them all.
The ring is called as `ringcomm.all_reduce`; RINGCOMM_ACROSS says what the network is. A contender
that takes more than 5 s is timed only once. `wire` is what no all-reduce can beat: of H hosts,
each has to send 2(H-1)/H of the buffer, at the goodput of a TCP connection that is measured first.
On a network of high rate and delay several connections may beat it, as TCP's window limits one; and
what fits into 1 ms of the rate passes at once. Where hosts share cores, an unshaped network
measures the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from across_hosts_report import WIRE, Place, Row, markdown, row_of, write
from common import check_picture, header, listed, rotated

from ringcomm.arguments import nbytes, number
from ringcomm.bench import plot
from ringcomm.units import readable_seconds
from ringcomm.usage import FailedError, Parser

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import hosts.mpi  # noqa: E402
from hosts import Network, missing  # noqa: E402
from hosts.job import Job  # noqa: E402

RANK = Path(__file__).with_name("across_hosts_rank.py")
# By job. Contenders of one job are groups of the same processes.
JOBS = {
    "torch": ["ring, ucx", "ring, gloo", "gloo"],
    "mpi tuned": ["mpi tuned"],
    "mpi han": ["mpi han"],
}
CONTENDERS = [contender for job in JOBS.values() for contender in job]
MPI_OPTIONS = {"mpi tuned": ("--mca", "coll", "^han"), "mpi han": ("--mca", "coll", "^adapt")}
PATIENCE = 120.0  # seconds
HEAD_START = 0.005  # seconds until a turn begins, so that all ranks have received it
TURN = 0.1  # seconds that several calls take together
LEAST_DELAY_MS = 0.05  # the delay that RINGCOMM_ACROSS gives for a network without any
LONG = 5.0  # seconds of a call that is not repeated


class Ranks:
    """The processes of one job; all of them get each instruction at once."""

    def __init__(self, connections: list[Connection], refused: dict[str, str]) -> None:
        self.connections = connections
        self.refused = refused

    def turn(self, contender: str, count: int, calls: int) -> float:
        """Seconds per call, from the common start until the last rank is done."""
        self.send({"name": contender, "count": count, "calls": calls})
        self.answers(contender)
        start = time.monotonic() + HEAD_START
        self.send(start)
        answers = self.answers(contender)
        if not all(answer["right"] for answer in answers):
            wrong = [rank for rank, answer in enumerate(answers) if not answer["right"]]
            raise FailedError(f"{contender}: ranks {wrong} have wrong sums of {count} elements")
        end: float = max(answer["end"] for answer in answers)
        return (end - start) / calls

    def send(self, what: object) -> None:
        for connection in self.connections:
            connection.send(what)

    def answers(self, contender: str) -> list[Any]:
        """What each rank says next."""
        answers = []
        for rank, connection in enumerate(self.connections):
            if not connection.poll(PATIENCE):
                raise FailedError(f"{contender}: rank {rank} is silent for {PATIENCE:g} s")
            answer = connection.recv()
            if "failed" in answer:
                raise FailedError(f"{contender}: rank {rank}: {answer['failed']}")
            answers.append(answer)
        return answers


@contextlib.contextmanager
def jobs_on(
    network: Network, place: Place, goodput: float, contenders: Sequence[str]
) -> Iterator[dict[str, Ranks]]:
    """Ranks by contender, in their order; those that are refused are said and left out."""
    started: list[Job | subprocess.Popen[str]] = []
    with (
        tempfile.TemporaryDirectory(prefix="rc-bench-") as name,
        socket.socket(socket.AF_UNIX) as door,
    ):
        directory = Path(name)
        address = str(directory / "door")
        door.bind(address)
        door.listen(100)
        door.settimeout(PATIENCE)
        ranks: dict[str, Ranks] = {}
        try:
            for job, its_contenders in JOBS.items():
                chosen = [one for one in its_contenders if one in contenders]
                if chosen:
                    started.append(start(network, place, goodput, directory, address, job, chosen))
                    arrived = admitted(door, network.hosts * place.ranks_per_host)
                    ranks.update(dict.fromkeys(chosen, arrived))
            for contender, its_ranks in list(ranks.items()):
                if contender in its_ranks.refused:
                    print(f"{contender} is left out: {its_ranks.refused[contender]}", flush=True)
                    del ranks[contender]
            yield {one: ranks[one] for one in contenders if one in ranks}
        except TimeoutError:
            raise FailedError("the ranks do not come: " + said(started, directory)) from None
        finally:
            for its_ranks in ranks.values():
                for connection in its_ranks.connections:
                    connection.close()
            for one in started:
                end(one)


def start(
    network: Network,
    place: Place,
    goodput: float,
    directory: Path,
    address: str,
    job: str,
    contenders: Sequence[str],
) -> Job | subprocess.Popen[str]:
    if not job.startswith("mpi"):
        arguments = (address, job, *contenders)
        link = f"{max(place.delay_ms, LEAST_DELAY_MS):g}ms:{goodput / 1e9:.6f}GB/s"
        env = {"RINGCOMM_ACROSS": link}
        return network.start(RANK, *arguments, ranks_per_host=place.ranks_per_host, env=env)
    own = directory / job.replace(" ", "-")
    own.mkdir()
    command = hosts.mpi.mpirun(network, place.ranks_per_host, own, *MPI_OPTIONS[job])
    return subprocess.Popen(
        [*command, sys.executable, str(RANK), address, job],
        env={**os.environ, **hosts.mpi.ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=(own / "log").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
    )


def admitted(door: socket.socket, world_size: int) -> Ranks:
    """A job's ranks, when all have come."""
    by_rank: dict[int, Connection] = {}
    refused: dict[str, str] = {}
    while len(by_rank) < world_size:
        connection = Connection(door.accept()[0].detach())
        if not connection.poll(PATIENCE):
            raise TimeoutError
        hello = connection.recv()
        by_rank[hello["rank"]] = connection
        refused.update(hello["refused"])
    return Ranks([by_rank[rank] for rank in range(world_size)], refused)


def said(started: Sequence[Job | subprocess.Popen[str]], directory: Path) -> str:
    texts = [result.stderr for job in started if isinstance(job, Job) for result in job.results()]
    texts += [log.read_text() for log in directory.glob("*/log")]
    return "\n".join(text[-2000:] for text in texts)


def end(job: Job | subprocess.Popen[str]) -> None:
    if isinstance(job, Job):
        job.close()
        return
    try:
        job.wait(20)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def measure(place: Place, options: argparse.Namespace) -> list[Row]:
    """All sizes and contenders, on one network after the other."""
    goodputs: list[float] = []
    times: dict[int, dict[str, list[float]]] = {}
    for _ in range(options.networks):
        goodputs.append(measure_on_one(place, options, times))
    goodput = statistics.median(goodputs)
    rows: list[Row] = []
    for size, by_contender in times.items():
        floor = wire(place, size, goodput)
        rows.append(row_of(place, size, WIRE, [floor], floor))
        rows += [row_of(place, size, name, each, floor) for name, each in by_contender.items()]
    return rows


def measure_on_one(
    place: Place, options: argparse.Namespace, times: dict[int, dict[str, list[float]]]
) -> float:
    """Adds seconds by size and contender to `times`. Returns the network's goodput, in bytes/s."""
    rate = None if place.rate == "unshaped" else place.rate
    with Network(place.hosts, rate=rate, delay_ms=place.delay_ms) as network:
        goodput = network.goodput(seconds=options.probe)
        print(f"\n{place}: goodput {goodput / 1e6:.4g} MB/s", flush=True)
        with jobs_on(network, place, goodput, options.contenders) as ranks:
            for size in options.sizes:
                floor = wire(place, size, goodput)
                if floor > options.longest:
                    continue
                found = rounds(ranks, size // 4, options)
                shown = [f"{WIRE} {readable_seconds(floor)}"]
                for name, each in found.items():
                    times.setdefault(size, {}).setdefault(name, []).extend(each)
                    shown.append(f"{name} {readable_seconds(statistics.median(each))}")
                print(f"{plot.readable(size):>5}: {'; '.join(shown)}", flush=True)
    return goodput


def wire(place: Place, size: int, goodput: float) -> float:
    """Seconds that no all-reduce can beat."""
    return 2 * (place.hosts - 1) / place.hosts * size / goodput


def rounds(
    ranks: dict[str, Ranks], count: int, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of each contender in each round. One that fails is said and removed from `ranks`."""
    calls: dict[str, int] = {}
    times: dict[str, list[float]] = {}

    def attempt(name: str, number: int) -> float | None:
        try:
            return ranks[name].turn(name, count, number)
        except (FailedError, OSError, EOFError) as error:
            print(f"{name} is left out from now on: {error}", flush=True)
            del ranks[name]
            times.pop(name, None)
            return None

    for name in list(ranks):
        first = [attempt(name, 1) for _ in range(2) if name in ranks]
        if name in ranks and first[-1] is not None:
            times[name] = [first[-1]] if first[-1] > LONG else []
            if first[-1] <= LONG:
                calls[name] = 1 if options.cold else max(1, min(100, round(TURN / first[-1])))
    for turn in range(options.rounds):
        for name in rotated([one for one in calls if one in ranks], turn):
            if not options.cold and attempt(name, 1) is None:
                continue
            seconds = attempt(name, calls[name])
            if seconds is not None:
                times[name].append(seconds)
    return times


def about() -> dict[str, str]:
    version = ""
    if hosts.mpi.missing() is None:
        shown = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
        version = "".join(re.findall(r"\(Open MPI\) (\S+)", shown))
    return {**header(), "Open MPI": version or "none"}


def layout(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([2-9])x([1-9])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not hosts x ranks per host, such as 2x2")
    return int(match[1]), int(match[2])


def contender(text: str) -> str:
    name = text.strip().replace("-", ", ") if text.strip().startswith("ring") else text.strip()
    name = name.replace("mpi-", "mpi ")
    if name not in CONTENDERS:
        names = ", ".join(one.replace(", ", "-").replace(" ", "-") for one in CONTENDERS)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {names}")
    return name


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = "1K,16K,256K,1M,4M,16M,64M"
    add = parser.add_argument
    add("--hosts", type=listed(layout), default="2x2,4x1,4x2", help="hosts x ranks per host")
    add("--rates", type=listed(str), default="100mbit,1gbit,10gbit,unshaped")
    add("--delays", type=listed(float), default="0,1,10", help="one way, in milliseconds")
    add("--sizes", type=listed(nbytes), default=sizes, help="in bytes")
    add("--contenders", type=listed(contender), help="such as ring-ucx,gloo,mpi-han; default: all")
    add("--cold", action="store_true", help="times the first call after the others' turns")
    add("--rounds", type=number(1), default=5, help="turns of each contender for each size")
    add("--networks", type=number(1), default=1, help="made one after the other, of each kind")
    add("--longest", type=float, default=3.0, help="seconds of the wire; larger sizes are left out")
    add("--output", type=Path, help="writes OUTPUT.csv, .json, .md and .png")
    add("--rehearse", action="store_true", help="little of all, in less than a minute")
    options = parser.parse_args(arguments)
    options.probe = 1.0
    if options.rehearse:
        options.hosts, options.rates, options.delays = [(2, 1)], ["1gbit"], [0.0, 1.0]
        options.sizes, options.rounds, options.probe = [1 << 10, 1 << 20], 2, 0.3
        options.networks = 2
    if missing():
        parser.error(str(missing()))
    check_picture(parser, options.output)
    if options.contenders is None:
        has_mpi = hosts.mpi.missing() is None
        options.contenders = [one for one in CONTENDERS if has_mpi or not one.startswith("mpi")]
    return options


def main() -> int:
    options = options_of()
    described = about()
    for name, value in described.items():
        print(f"{name}: {value}")
    rows: list[Row] = []
    for count, ranks_per_host in options.hosts:
        for rate in options.rates:
            for delay_ms in options.delays:
                rows += measure(Place(count, ranks_per_host, rate, delay_ms), options)
                if options.output:  # after each, for the whole takes hours
                    write(options.output, rows, described)
    print("\n" + markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
