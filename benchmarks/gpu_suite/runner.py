"""Runs phases one after the other, each to its end or its limit, and keeps what they leave."""

from __future__ import annotations

import csv
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from gpu_suite import mps, rehearsal, supervise
from gpu_suite.phases import Phase

KIND = rehearsal.LABEL if rehearsal.ON else "measured"
FIELDS = ("phase", "outcome", "seconds", "detail", "kind")
_SHOWN = 5  # lines of the log of a phase that failed


class MixedError(Exception):
    """The directory holds results of the other kind."""


@contextmanager
def preloaded(library: str) -> Iterator[dict[str, str]]:
    """What the environment needs so that this NCCL is loaded in place of torch's; .xz is unpacked.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not library:
        yield {}
        return
    path = Path(library).resolve(strict=True)
    with tempfile.TemporaryDirectory(prefix="nccl-") as directory:
        if path.suffix == ".xz":
            packed, path = path, Path(directory, path.stem)
            with lzma.open(packed) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
        yield {"LD_PRELOAD": str(path)}


class Runner:
    """Phases with their results in one directory."""

    def __init__(self, results: Path, archive: Path | None, preload: dict[str, str]) -> None:
        self.results = results
        self.rows = results / "phases.csv"
        self._archive = archive
        self._preload = preload
        self._unusable: str | None = None  # why ringcomm cannot be imported; None: not looked
        results.mkdir(parents=True, exist_ok=True)
        self._refuse_to_mix()

    def run(self, phases: Sequence[Phase]) -> bool:
        """Whether all of them succeeded."""
        outcomes = []
        for phase in phases:
            print(f"== {phase.name}", flush=True)
            began = time.monotonic()
            try:
                detail = self._run(phase)
                seconds = time.monotonic() - began
                outcomes.append((phase, "failed" if detail else "ok", seconds, detail))
                self._add_row(*outcomes[-1])
            finally:
                self._pack()  # what a phase has left that was interrupted, too
        print(f"\n{KIND}, results in {self.results}")
        for phase, outcome, seconds, detail in outcomes:
            print(f"{phase.name:<16} {outcome:<7} {seconds:4.0f} s  {detail}")
        return all(outcome == "ok" for _, outcome, _, _ in outcomes)

    def _run(self, phase: Phase) -> str:
        """Why the phase failed; empty if it did not."""
        if phase.needs_build and (problem := self._build_problem()):
            return f"not run, as ringcomm is not built: {problem}"
        if phase.name in ("build", "unpack"):
            self._unusable = None
        log = self.results / f"{phase.name}.log"
        with log.open("ab", buffering=0) as output:
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            output.write(f"# {phase.name}, {now}, {KIND}\n".encode())
            with mps.running() if phase.mps else nullcontext() as time_sliced:
                if time_sliced:
                    output.write(f"time-sliced: {time_sliced}\n".encode())
                detail = self._commands(phase, output)
        if not detail and not (self.results / phase.file).exists():
            detail = f"wrote no {phase.file}"
        if detail:
            tail = log.read_text(errors="replace").splitlines()[-_SHOWN:]
            print("\n".join(tail), flush=True)
        return detail

    def _commands(self, phase: Phase, output: BinaryIO) -> str:
        limit = phase.seconds * rehearsal.PATIENCE
        deadline = time.monotonic() + limit
        environment = self._preload if phase.ranks else {}
        for command in phase.commands:
            output.write(f"+ {' '.join(command)}\n".encode())
            left = max(0.0, deadline - time.monotonic())
            try:
                code = supervise.run(command, left, output, environment)
            except OSError as error:
                return str(error)
            if code is None:
                return f"ended at its limit of {limit} s"
            if code:
                return f"exit code {code}: {last_line(Path(output.name))}"
        return ""

    def _build_problem(self) -> str:
        if self._unusable is None:
            importing = [sys.executable, "-c", "import ringcomm"]
            result = subprocess.run(importing, text=True, capture_output=True)
            text = result.stderr.strip().splitlines()
            self._unusable = text[-1] if result.returncode else ""
        return self._unusable

    def _refuse_to_mix(self) -> None:
        if not self.rows.exists():
            return
        with self.rows.open(newline="") as file:
            kinds = {row["kind"] for row in csv.DictReader(file)}
        if kinds - {KIND}:
            raise MixedError(f"{self.results} holds results of another kind: {', '.join(kinds)}")

    def _add_row(self, phase: Phase, outcome: str, seconds: float, detail: str) -> None:
        new = not self.rows.exists()
        with self.rows.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(FIELDS)
            writer.writerow((phase.name, outcome, f"{seconds:.1f}", detail, KIND))

    def _pack(self) -> None:
        """All results in one file, and the build in another; never a half of either."""
        if self._archive is None:
            return
        self._archive.mkdir(parents=True, exist_ok=True)
        half = self._archive / "half"
        prefix = "rehearsal" if rehearsal.ON else "results"
        with tarfile.open(half, "w:gz") as tar:
            for path in sorted(self.results.iterdir()):
                if path.is_file() and path.name != "built.tar.gz":
                    tar.add(path, f"{prefix}/{path.name}")
        os.replace(half, self._archive / f"{prefix}.tar.gz")
        if (built := self.results / "built.tar.gz").exists():
            shutil.copy(built, half)
            os.replace(half, self._archive / built.name)


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200]
