"""Runs Python programs as a person would, in processes that need not import torch again."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import ranks  # noqa: F401  (its fork server has imported torch)

from ringcomm.forked import become

ROOT = Path(__file__).resolve().parents[1]
_fork_server = multiprocessing.get_context("forkserver")


def python(
    *arguments: str | Path, cwd: str | Path | None = None, timeout: float = 200, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `python arguments` from the folder `cwd`, with this repository on its path.

    Args:
        arguments: a script, `-m` and a module, or `-c` and a program, with its arguments.
        timeout: seconds.
        environment: variables besides those of this process.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    paths = [environment.pop("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
    python_path = os.pathsep.join(filter(None, paths))
    variables = {**os.environ, **environment, "PYTHONPATH": python_path}
    command = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory(prefix="program-") as directory:
        files = [Path(directory, name) for name in ("out", "err")]
        process = _fork_server.Process(
            target=_main, args=(command, str(cwd or Path.cwd()), variables, files)
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, *(file.read_text() for file in files))
        out, err = (file.read_text() for file in files)
        return subprocess.CompletedProcess(command, process.exitcode, out, err)


def _main(command: list[str], cwd: str, variables: Mapping[str, str], files: list[Path]) -> None:
    for descriptor, file in enumerate(files, 1):
        with file.open("wb", buffering=0) as opened:
            os.dup2(opened.fileno(), descriptor)
    os.chdir(cwd)
    sys.path.insert(0, "")  # which the program's own folder replaces
    become(command, variables)
