"""A rank of benchmarks/across_hosts.py, which sends it instructions over a socket.

    python across_hosts_rank.py SOCKET JOB CONTENDER...

All ranks begin an all-reduce at the time that the instruction names. All processes of a machine
read the same clock, whatever host they are on. Between its turns a rank sleeps.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

SPIN = 3e-4  # seconds before the start, in which sleeping might be late


class Torch:
    """Groups of torch.distributed: "gloo", or "ring, ucx" with links by UCX.

    The ring is called as `ringcomm.all_reduce`, gloo as `dist.all_reduce`.
    """

    def __init__(self, contenders: list[str]) -> None:
        import torch
        import torch.distributed as dist

        import ringcomm

        self.torch, self.dist, self.ringcomm = torch, dist, ringcomm
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.groups: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        for contender in contenders:
            backend, _, links = contender.partition(", ")
            if backend == "ring":
                os.environ["RINGCOMM_LINKS"] = links
            try:
                group = dist.new_group(backend=backend)
                dist.all_reduce(torch.zeros(1), group=group)
            except (RuntimeError, ValueError) as error:
                self.refused[contender] = str(error).splitlines()[0]
            else:
                self.groups[contender] = group

    def buffer(self, count: int, value: float) -> Any:
        return self.torch.full((count,), value)

    def all_reduce(self, contender: str, buffer: Any) -> None:
        library = self.ringcomm if contender.startswith("ring") else self.dist
        library.all_reduce(buffer, group=self.groups[contender])


class Mpi:
    """MPI_Allreduce; mpirun's options chose its algorithm."""

    def __init__(self, contenders: list[str]) -> None:
        import numpy
        from mpi4py import MPI

        self.numpy, self.mpi = numpy, MPI
        self.rank, self.size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        self.refused: dict[str, str] = {}

    def buffer(self, count: int, value: float) -> Any:
        return self.numpy.full(count, value, dtype="f4")

    def all_reduce(self, contender: str, buffer: Any) -> None:
        self.mpi.COMM_WORLD.Allreduce(self.mpi.IN_PLACE, buffer)


def turn(
    library: Torch | Mpi, driver: Connection, name: str, count: int, calls: int
) -> dict[str, Any]:
    """Does `calls` all-reduces, when the driver says. The first of a turn of one is checked."""
    checked = calls == 1
    buffer = library.buffer(count, float(library.rank + 1) if checked else 0.0)
    driver.send("ready")  # touching new memory takes longer than a small call, and it varies
    begin_at(driver.recv())
    for _ in range(calls):
        library.all_reduce(name, buffer)
    end = time.monotonic()
    expected = library.size * (library.size + 1) / 2 if checked else 0.0
    return {"end": end, "right": bool((buffer == expected).all())}


def begin_at(start: float) -> None:
    time.sleep(max(0.0, start - SPIN - time.monotonic()))
    while time.monotonic() < start:
        pass


def serve(driver: Connection, make: Callable[[list[str]], Torch | Mpi]) -> None:
    job, contenders = sys.argv[2], sys.argv[3:]
    library = make(contenders)
    driver.send({"job": job, "rank": library.rank, "refused": library.refused})
    while True:
        try:
            todo = driver.recv()
        except EOFError:
            return
        try:
            driver.send(turn(library, driver, **todo))
        except Exception as error:
            driver.send({"failed": str(error).splitlines()[0]})


def main() -> None:
    with Client(sys.argv[1], "AF_UNIX") as driver:
        serve(driver, Mpi if sys.argv[2].startswith("mpi") else Torch)


main()
