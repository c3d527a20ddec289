"""CUDA's Multi-Process Service, by which kernels of several processes run side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_suite import rehearsal

_CONTROL = "nvidia-cuda-mps-control"
_CLIENT = "from gpu_suite import device; device.own(0)"
_SECONDS = 20 * rehearsal.PATIENCE
_FOLDER = Path(__file__).resolve().parents[1]  # from which the client imports this package


def how() -> str:
    """How the processes started from here share a GPU."""
    return "MPS" if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else "time-sliced"


@contextmanager
def running() -> Iterator[str]:
    """Starts MPS for the processes that are started within, and ends it.

    Yields:
        Why it cannot be had, so that the processes are time-sliced; empty if it runs.
    """
    if shutil.which(_CONTROL) is None:
        yield f"{_CONTROL} is not on the PATH"
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as directory:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        os.environ.update(dict.fromkeys(names, directory))
        daemon = subprocess.Popen([_CONTROL, "-f"], stdout=subprocess.DEVNULL)
        try:
            problem = _problem()
            if problem:
                _forget(names)
            yield problem
        finally:
            _forget(names)
            _end(daemon, directory)


def _problem() -> str:
    """Whether a client comes to run under the daemon's server."""
    try:
        subprocess.run(
            [sys.executable, "-c", _CLIENT],
            check=True,
            timeout=_SECONDS,
            cwd=_FOLDER,
            env={**os.environ, "CUDA_MODULE_LOADING": "LAZY"},  # it runs no kernel beside others
        )
        servers = _ask("get_server_list")
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if servers.strip().isdecimal() else f"there is no MPS server, but {servers!r}"


def _ask(question: str, **environment: str) -> str:
    return subprocess.run(
        [_CONTROL],
        input=f"{question}\n",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
        timeout=_SECONDS,
        env={**os.environ, **environment},
    ).stdout


def _forget(names: tuple[str, ...]) -> None:
    for name in names:
        os.environ.pop(name, None)


def _end(daemon: subprocess.Popen[bytes], directory: str) -> None:
    try:
        _ask("quit", CUDA_MPS_PIPE_DIRECTORY=directory)
        daemon.wait(_SECONDS)
    except (OSError, subprocess.SubprocessError):
        daemon.kill()
        daemon.wait()
