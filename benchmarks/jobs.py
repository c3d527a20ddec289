"""What benchmarks share that run jobs of themselves, most of them of transformers' models."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import report

from ringcomm.arguments import number
from ringcomm.launch import RanksFailedError, run_ranks
from ringcomm.usage import FailedError, Parser

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BUSY = "import os\nwhile os.getppid() == {parent}:\n    sum(range(100000))"


class WrongResultsError(RuntimeError):
    """What ranks have computed is not what it has to be; the text says where."""


class CallTimer:
    """How many calls of torch.distributed there were, and how long they took."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    @contextlib.contextmanager
    def timing(self, *names: str) -> Iterator[None]:
        """Times the functions of these names in this block, those that this torch has."""
        functions = {name: getattr(dist, name) for name in names if hasattr(dist, name)}
        for name, function in functions.items():
            setattr(dist, name, self._timed(function))
        try:
            yield
        finally:
            for name, function in functions.items():
                setattr(dist, name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            work = function(*args, **options)
            self.seconds += time.perf_counter() - started
            self.calls += 1
            return work

        return timed


def add_job_arguments(
    parser: argparse.ArgumentParser, busy: Callable[[str], Any] | None = None, default: Any = 0
) -> None:
    """What a user names, and what `run_job` adds.

    Args:
        busy: converts the numbers of busy processes; None for one number.
        default: of that.
    """
    parser.add_argument("--rounds", type=number(1), default=3, help="jobs of each backend")
    parser.add_argument(
        "--busy", type=busy or number(0), default=default, help="processes that compute besides"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="without ending: .csv, .json, .md and, of pictures, .png"
    )
    for name, type in [("step", str), ("backend", str), ("folder", Path), ("result", Path)]:
        parser.add_argument(f"--{name}", type=type, help=argparse.SUPPRESS)


def check_names(
    parser: argparse.ArgumentParser, option: str, found: Sequence[str], known: Sequence[str]
) -> None:
    """Ends the program with a clear error if an option names what there is not."""
    if unknown := set(found) - set(known):
        parser.error(f"{option}: {min(unknown)} is none of {', '.join(known)}")


def import_transformers(parser: Parser, *modules: str) -> None:
    """Before the ranks start: they are forks of this process. A GPU would be used."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    if not importlib.util.find_spec("transformers"):
        parser.error("it needs transformers and accelerate: pip install -e '.[models]'")
    for name in modules:
        importlib.import_module(f"transformers.models.{name}")


def prepare_rank() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)


def run_job(options: argparse.Namespace, step: str, result: Path, backend: str, nproc: int) -> None:
    """Runs this script again, as one process or as ranks.

    Raises RanksFailedError if it fails.
    """
    places = ("--folder", str(options.folder), "--result", str(result))
    run_ranks([*sys.argv, "--step", step, "--backend", backend, *places], nproc)


@contextlib.contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """So many processes compute without a pause; they end with this one."""
    program = BUSY.format(parent=os.getpid())
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def beside(busy: int) -> str:
    """A note's words for them, if there are any."""
    return f", beside {busy} busy process{'es' * (busy > 1)}" if busy else ""


def measure_and_report(
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], list[Any]],
    kind: type,
    note: Callable[[argparse.Namespace], str],
    table: Callable[[list[Any]], str],
    draw: Callable[[Path, list[Any]], None] | None = None,
) -> int:
    """Reports the rows that `measure` finds with a folder for its jobs; returns the exit code."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            options.folder = Path(folder)
            rows = measure(options)
    except (FailedError, RanksFailedError, WrongResultsError) as error:
        print(error, file=sys.stderr)
        return 1
    report(options.output, kind, rows, note(options), table(rows))
    if options.output and draw:
        draw(options.output.with_suffix(".png"), rows)
    return 0
