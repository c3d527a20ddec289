"""python -m ringcomm demo: data-parallel training over the ring, checked and compared.

On GPUs, one per rank, if there are two or more and enough for all ranks, and compared with NCCL;
else on the CPU, and compared with gloo.
"""

from __future__ import annotations

import argparse

from ringcomm.arguments import number
from ringcomm.usage import FailedError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--nproc",
        type=number(1),
        help="number of processes (default: one for each GPU if there are several, else 4 on the "
        "CPU); a launcher's own, if one started this",
    )
    parser.add_argument(
        "--epochs", type=number(1), default=10, help="passes over the data (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Is one rank if a launcher started it, else starts the ranks. Returns the exit code."""
    from ringcomm.cli import demo_rank
    from ringcomm.launch import RanksFailedError, run_ranks
    from ringcomm.launchers import is_rank

    if is_rank():
        return demo_rank.run(options.epochs)
    try:
        nproc = options.nproc or demo_rank.usable_gpus() or 4
        print(f"starting {nproc} processes", flush=True)
        run_ranks(["-m", "ringcomm", *options.command_line], nproc)
    except RanksFailedError as error:
        raise FailedError(f"{error}; what it said is above") from error
    return 0
