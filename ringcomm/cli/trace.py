"""python -m ringcomm trace: all-reduces under torch's profiler, as one trace of all ranks."""

from __future__ import annotations

import argparse
import os

from ringcomm.arguments import module, nbytes, number
from ringcomm.cli.traces import trace_file
from ringcomm.usage import FailedError, UsageError, did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Runs all-reduces on the CPU under torch.profiler and writes what all ranks did when, on "
        "one clock, as one file for Perfetto, in which each rank is a process. Each "
        '"ring:all_reduce" has spans "step S slice K", the work on slice K in step S: what is '
        "received, or what is sent in step 0; both count from 0. Gaps are waits for other ranks. "
        "Buffers of a few KiB are exchanged at once and have no steps."
    )
    parser.add_argument(
        "--nproc",
        type=number(1),
        default=4,
        help="ranks to start, unless a launcher started this (default: %(default)s)",
    )
    parser.add_argument("--size", type=nbytes, default="4M", help="of the tensor (default: 4M)")
    parser.add_argument(
        "--iters", type=number(1), default=3, help="all-reduces (default: %(default)s)"
    )
    parser.add_argument(
        "--algorithm",
        default="ring",
        help='a name that help(ringcomm.plan) lists, or "auto" (default: %(default)s)',
    )
    parser.add_argument(
        "--import",
        type=module,
        metavar="MODULE",
        help="a module that registers algorithms, by its name or file (.py)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=trace_file,
        default="ringcomm_trace.json",
        metavar="FILE",
        help="as .json or .json.gz (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Is one rank if a launcher started it, else starts the ranks. Returns the exit code."""
    from ringcomm.cli import trace_rank
    from ringcomm.launch import RanksFailedError, run_ranks
    from ringcomm.launchers import is_rank
    from ringcomm.plan import registry
    from ringcomm.plan.algorithms import ALGORITHMS

    known = ["auto", *ALGORITHMS["all_reduce"], *registry.names("all_reduce")]
    if options.algorithm not in known:
        raise UsageError(
            f"--algorithm must be one of {', '.join(known)}, got {options.algorithm!r}"
            + did_you_mean(options.algorithm, known)
        )
    os.environ["RINGCOMM_ALGORITHM"] = options.algorithm
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each rank reports that it has no GPU
    if is_rank():
        trace_rank.run(options)
        return 0
    try:
        run_ranks(["-m", "ringcomm", *options.command_line], options.nproc)
    except RanksFailedError as error:
        raise FailedError(f"no trace: {error}; what it said is above") from error
    return 0
