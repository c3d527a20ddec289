"""Programs on hosts: which runs where, signals to them, and how each ended."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ranks  # its fork server has imported torch

from hosts.namespaces import enter, own_directory
from hosts.report import DIRECTORY
from ringcomm.forked import become

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds, on a busy machine
_PR_SET_PDEATHSIG = 1
_fork_server = multiprocessing.get_context("forkserver")


@dataclass
class Result:
    """What became of a process; `rank` is the command's number where a job runs commands."""

    rank: int
    host: int
    status: int | None  # the exit status, or -signal; None: it was still running at the end
    stdout: str = ""
    stderr: str = ""
    reports: list[Any] = field(default_factory=list)


class JobFailedError(AssertionError):
    """Not all that was waited for came; the text has what each process has said last."""

    def __init__(self, what: str, results: Sequence[Result]) -> None:
        self.results = results
        lines = [what]
        for result in results:
            lines.append(f"--- rank {result.rank} on host {result.host}: status {result.status}")
            lines += [result.stdout[-2000:], result.stderr[-8000:]]
        super().__init__("\n".join(lines))


@dataclass
class Program:
    """What to start: a Python script with arguments, or a command.

    Args:
        host: the number of the host it runs on.
        keeper: the process whose namespaces are the host, if it has any.
    """

    host: int
    arguments: list[str]
    environment: dict[str, str]
    is_command: bool = False
    keeper: int | None = None


class Job:
    """Programs under way. Use it as a context, or within that of its hosts."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._directory = own_directory()
        self.directory = Path(self._directory.name)
        self._programs = programs
        self._heard = [0] * len(programs)
        self._statuses: list[int | None] = [None] * len(programs)
        self._ends: list[Connection] = []
        self._processes = []
        self._pids: list[int] = []
        for number, program in enumerate(programs):
            program.environment[DIRECTORY] = str(self.directory)
            end, theirs = _fork_server.Pipe(duplex=False)
            log = str(self.directory / f"log{number}")
            process = _fork_server.Process(target=_guard, args=(program, log, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(end)
            self._processes.append(process)
        try:
            for end in self._ends:
                self._pids.append(end.recv())
        except EOFError:
            raise OSError(f"program {len(self._pids)} cannot be started on its host") from None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills what still runs. What `results` have not read is gone then."""
        if not self.directory.exists():
            return
        for rank in range(len(self._programs)):
            self._signal(rank, signal.SIGKILL)
        for process in self._processes:
            process.join()
        for end in self._ends:
            end.close()
        self._directory.cleanup()

    def pid(self, rank: int) -> int:
        """The process number, as the test's process sees it."""
        return self._pids[rank]

    def kill(self, rank: int) -> float:
        """Sends SIGKILL; returns the time of it by time.monotonic(), which all processes share."""
        return self._signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> float:
        """Lets a rank stand still, until `resume`; returns the time of it."""
        return self._signal(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> float:
        return self._signal(rank, signal.SIGCONT)

    def kill_host(self, host: int) -> float:
        """Kills at once what runs on a host; the others' connections to it are closed.

        A host of `Local` has nothing but the job's ranks. Where a host is to go silently, as
        without power, `Network.power_off` does it.
        """
        now = time.monotonic()
        for rank, program in enumerate(self._programs):
            if program.host == host and program.keeper is None:
                self._signal(rank, signal.SIGKILL)
            elif program.host == host:
                spaces = f"--pid=/proc/{program.keeper}/ns/pid"
                subprocess.run(["nsenter", spaces, "sh", "-c", "kill -9 -1"], check=True)
                break
        return now

    def reports(self, rank: int) -> list[Any]:
        """What the rank has reported so far."""
        path = self.directory / f"rank{rank}.json"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def hear(self, rank: int, patience: float = PATIENCE) -> Any:
        """The rank's next report that was not read yet.

        Raises:
            JobFailedError: it has ended, or says nothing in `patience` seconds; then all print
                where they are and are killed.
        """
        deadline = time.monotonic() + patience
        while True:
            ended = self._status(rank) is not None
            reports = self.reports(rank)
            if len(reports) > self._heard[rank]:
                self._heard[rank] += 1
                return reports[self._heard[rank] - 1]
            if ended:
                text = f"rank {rank} has ended and reported no more"
                raise JobFailedError(text, self.results())
            if time.monotonic() > deadline:
                raise self._aborted(f"rank {rank} has reported nothing in {patience} s")
            time.sleep(0.005)

    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank for rank in range(len(self._programs)) if self._status(rank) is None]

    def wait(self, timeout: float = PATIENCE) -> list[Result]:
        """What became of each rank, when all have ended.

        Raises:
            JobFailedError: some had not ended after `timeout` seconds. They print where they were
                and are killed.
        """
        deadline = time.monotonic() + timeout
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.01)
        late = self.running()
        if late:
            raise self._aborted(f"ranks {late} have not ended after {timeout} s")
        return self.results()

    def succeed(self, timeout: float = PATIENCE) -> list[Result]:
        """As `wait`, where none may fail.

        Raises:
            JobFailedError: a rank's exit status is not 0.
        """
        results = self.wait(timeout)
        failed = [result.rank for result in results if result.status != 0]
        if failed:
            raise JobFailedError(f"ranks {failed} have failed", results)
        return results

    def results(self) -> list[Result]:
        """What has become of each rank so far."""
        return [
            Result(
                rank,
                program.host,
                self._status(rank),
                self._text(rank, "out"),
                self._text(rank, "err"),
                self.reports(rank),
            )
            for rank, program in enumerate(self._programs)
        ]

    def _text(self, rank: int, which: str) -> str:
        log = self.directory / f"log{rank}.{which}"
        return log.read_text(errors="replace") if log.exists() else ""

    def _aborted(self, what: str) -> JobFailedError:
        for rank in self.running():
            self._signal(rank, signal.SIGCONT)
            self._signal(rank, signal.SIGABRT)  # its faulthandler says where it is
        for rank in self.running():
            self._processes[rank].join(ranks.GRACE)
        return JobFailedError(what, self.results())

    def _signal(self, rank: int, number: int) -> float:
        now = time.monotonic()
        if self._status(rank) is None:  # its guard has not reaped it, so the number is still its
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], number)
        return now

    def _status(self, rank: int) -> int | None:
        if self._statuses[rank] is None and self._ends[rank].poll():
            try:
                self._statuses[rank] = self._ends[rank].recv()
            except EOFError:
                raise AssertionError(f"the guard of rank {rank} has died") from None
        return self._statuses[rank]


def start_ranks(
    script: str | Path,
    arguments: Sequence[str],
    hosts_of_ranks: Sequence[int],
    environments: Sequence[Mapping[str, str]],
    keepers: Sequence[int | None],
    rendezvous: Mapping[str, str],
    warm: bool,
) -> Job:
    """Starts a rank of the script per entry of `hosts_of_ranks`; the next two are by host."""
    programs = []
    for rank, host in enumerate(hosts_of_ranks):
        environment = {
            **environments[host],
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts_of_ranks)),
            "LOCAL_RANK": str(hosts_of_ranks[:rank].count(host)),
            "LOCAL_WORLD_SIZE": str(hosts_of_ranks.count(host)),
            **rendezvous,
        }
        command = [*([] if warm else [sys.executable]), str(script), *arguments]
        programs.append(Program(host, command, environment, not warm, keepers[host]))
    return Job(programs)


def placed(placement: str | Sequence[int], hosts: int, ranks_per_host: int) -> list[int]:
    """The host of each rank. "block" is 0, 0, 1, 1 and "round robin" is 0, 1, 0, 1."""
    if placement == "block":
        return [host for host in range(hosts) for _ in range(ranks_per_host)]
    if placement == "round robin":
        return [host for _ in range(ranks_per_host) for host in range(hosts)]
    if isinstance(placement, str):
        raise ValueError(f'placement is {placement!r}, not "block", "round robin" or a list')
    return list(placement)


def _guard(program: Program, log: str, end: Connection) -> None:
    """Starts the program as a child that dies with this process; reports its number and its end.

    A child has to be made to get a process number of the host.
    """
    _die_with_parent()
    if program.keeper is not None:
        enter(program.keeper)
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        end.close()
        _become(program, log)
    with contextlib.suppress(BrokenPipeError):  # the test has ended, which ends this process, too
        end.send(pid)
        _, status = os.waitpid(pid, 0)
        end.send(os.waitstatus_to_exitcode(status))


def _become(program: Program, log: str) -> None:
    for number, which in ((1, "out"), (2, "err")):
        with open(f"{log}.{which}", "wb", buffering=0) as file:
            os.dup2(file.fileno(), number)
    paths = [str(ROOT), str(ROOT / "tests")]
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    environment = {"PYTHONPATH": ":".join([*paths, *inherited]), "PYTHONFAULTHANDLER": "1"}
    os.environ.update({**environment, **program.environment})
    if program.is_command:
        try:
            os.execvp(program.arguments[0], program.arguments)
        except OSError as error:
            print(error, file=sys.stderr)
            os._exit(127)
    faulthandler.enable()
    sys.path.insert(0, "")  # which the script's own folder replaces
    status = 1
    try:
        become(program.arguments, {"OMP_NUM_THREADS": "1", **os.environ})
    except SystemExit as end:
        assert isinstance(end.code, int)
        status = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
