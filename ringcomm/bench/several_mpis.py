"""Several MPIs in one comparison, and oneCCL, which stands on one.

A process can load but one MPI, so each is a job of its own, with the first backend alone beside
it. Gloo, if it is not that one, stays out: by its threads the system comes to leave both of two
ranks on one core, where an MPI, which polls without a pause, waits for the other's time slice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ringcomm.bench import plot, report
from ringcomm.bench.mpirun import mpirun
from ringcomm.bench.options import PREFIXED
from ringcomm.launch import run_ranks
from ringcomm.usage import UsageError

_TITLES = {"mpi": "MPI", "oneccl": "oneCCL"}  # in a report's header


@dataclass(frozen=True)
class Job:
    """An MPI, or oneCCL with its own, by the folder that it is installed in."""

    backend: str  # "mpi" or "oneccl"
    prefix: Path

    @staticmethod
    def of(name: str) -> Job:
        backend, _, prefix = name.partition(":")
        return Job(backend, Path(prefix).absolute())

    @property
    def name(self) -> str:
        """As rows have it, such as mpi:openmpi."""
        return f"{self.backend}:{self.prefix.name}"


def run(options: argparse.Namespace) -> int:
    """Measures the first backend beside each MPI, in turn within each job, and reports together.

    The first backend's rows, and those of all others, which are no MPI, are of a job before. Ratios
    are to the first backend within the same job. Returns 1 if an MPI's job failed or a result was
    wrong.

    Raises:
        UsageError: there is nothing to compare with, or two MPIs have the same name.
        FailedError: as `mpirun`.
        RanksFailedError: the job before failed, or a result was wrong there.
    """
    jobs = [Job.of(name) for name in options.backends if name.startswith(PREFIXED)]
    others = [name for name in options.backends if not name.startswith(PREFIXED)]
    if not others or options.backends[0] not in others or {"mpi", "oneccl"} & set(others):
        raise UsageError(
            "--backends with mpi:PREFIX or oneccl:PREFIX begins with another backend, which each "
            "of them is compared with, and has no plain mpi or oneccl; got "
            + ",".join(options.backends)
        )
    if len({job.name for job in jobs}) < len(jobs):
        raise UsageError(f"the last parts of {', '.join(str(j.prefix) for j in jobs)} must differ")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        run_ranks(_command(options, others, output), options.nproc)
        header, rows = _read(output)
        for job in jobs:
            command = _command(options, [others[0], job.backend], output)
            code = mpirun(command, options.nproc, job.prefix)
            if code != 0:
                return code
            of_job, found = _read(output)
            header[job.name] = of_job[_TITLES[job.backend]]
            rows += [replace(r, backend=job.name) for r in found if r.backend == job.backend]
    rows = list(_by_case(rows))
    _print(rows, options.spread)
    _write(options, header, rows)
    return 0


def _command(options: argparse.Namespace, backends: list[str], output: Path) -> list[str]:
    words = ["-m", "ringcomm", "bench", ",".join(options.collectives)]
    words += ["--backends", ",".join(backends), "--algorithms", ",".join(options.algorithms)]
    words += ["-b", str(options.minbytes), "-e", str(options.maxbytes)]
    words += ["-f", str(options.stepfactor), "-n", str(options.iters)]
    words += ["-w", str(options.warmup_iters), "-c", str(options.check), "-r", str(options.root)]
    words += ["-d", ",".join(options.datatype), "-o", ",".join(options.op)]
    words += ["--placement", options.placement]
    words += ["--timeout", str(options.timeout), "--rows", str(output)]
    if options.ranks_per_host is not None:
        hosts = options.ranks_per_host
        words += ["--ranks-per-host", str(hosts) if isinstance(hosts, int) else _joined(hosts)]
    if (imported := getattr(options, "import")) is not None:
        words += ["--import", imported.__name__]
    return [*words, *(["--spread"] if options.spread else [])]


def _read(output: Path) -> tuple[dict[str, str], list[report.Row]]:
    """A job's header and rows."""
    document = json.loads(output.read_text())
    return document["header"], [report.Row(**row) for row in document["rows"]]


def _joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _by_case(rows: list[report.Row]) -> Iterator[report.Row]:
    """The rows of a case behind each other, cases in the order of the first job."""
    cases: dict[tuple[object, ...], list[report.Row]] = {}
    for row in rows:
        cases.setdefault((row.collective, row.type, row.redop, row.size), []).append(row)
    for case in cases.values():
        yield from case


def _print(rows: list[report.Row], spread: bool) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    table = report.Table([row.backend for row in rows], spread)
    lines: dict[tuple[object, ...], dict[bool, report.Row]] = {}
    for row in rows:
        case = (row.collective, row.type, row.redop, row.size, row.backend)
        lines.setdefault(case, {})[row.in_place] = row
    shown = ""
    for (collective, *_), placements in lines.items():
        if collective != shown:
            shown = str(collective)
            for line in ("#", f"# {shown}, all jobs", *table.heading()):
                console.print(line)
        console.print(table.line(placements.get(False), placements.get(True)))


def _write(options: argparse.Namespace, header: dict[str, str], rows: list[report.Row]) -> None:
    if options.csv:
        report.write_csv(options.csv, rows)
    if options.output_file:
        report.write_json(options.output_file, header, rows)
    if options.plot:
        plot.write(options.plot, rows, {}, header["machine"])
    for path in filter(None, (options.csv, options.output_file, options.plot)):
        print(f"# wrote {path.resolve()}")
