"""CUDA's Multi-Process Service, by which kernels of several processes run side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_suite import rehearsal

_CONTROL = "nvidia-cuda-mps-control"
# Makes a context on the first GPU, by the driver alone, as torch takes seconds more.
_CONTEXT = """\
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
raise SystemExit(f"CUDA's driver answers with error {code}" if code else 0)
"""
_CLIENT = "pass" if rehearsal.ON else _CONTEXT
_SECONDS = 20 * rehearsal.PATIENCE


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
