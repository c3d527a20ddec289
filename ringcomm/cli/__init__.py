"""What `python -m ringcomm` does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import ringcomm
from ringcomm.bench.options import add_arguments as add_bench_arguments
from ringcomm.cli.cost import add_arguments as add_cost_arguments
from ringcomm.cli.simulate import add_arguments as add_simulate_arguments

# Of ringcomm.plan, which cannot be imported everywhere.
_COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m ringcomm")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="train a small network data-parallel, check it, and compare with gloo"
    )
    demo.add_argument(
        "--nproc",
        type=_positive,
        help="number of processes (default: one for each GPU if there are several, else 4 on the "
        "CPU); a launcher's own, if one started this",
    )
    demo.add_argument(
        "--epochs", type=_positive, default=10, help="passes over the data (default: %(default)s)"
    )
    add_bench_arguments(
        commands.add_parser("bench", help="time collectives over the ring, gloo, NCCL and MPI")
    )
    explain = commands.add_parser("explain", help="write a plan as a picture")
    explain.add_argument(
        "collective",
        nargs="?",
        choices=_COLLECTIVES,
        default="all_reduce",
        help="(default: %(default)s)",
    )
    explain.add_argument("--world-size", type=_positive, default=5, help="(default: %(default)s)")
    explain.add_argument("--algorithm", help="a name that help(ringcomm.plan) lists")
    explain.add_argument("--root", type=int, help="of a collective that has one")
    explain.add_argument("--ranks-per-host", type=_positive, help="of hierarchical plans")
    explain.add_argument(
        "-o",
        "--output",
        type=Path,
        help="a page (.html), or for slides a drawing (.svg) or an animation (.gif) "
        "(default: COLLECTIVE.html)",
    )
    add_cost_arguments(
        commands.add_parser("cost", help="memory and communication of training a transformer")
    )
    add_simulate_arguments(
        commands.add_parser("simulate", help="how long collectives take on a network, at any scale")
    )
    commands.add_parser("doctor", help="report what is installed, and what is wrong with it")
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)

    # Each command is imported when it is run: the doctor must work where little else does.
    if options.command == "doctor":
        from ringcomm.cli.doctor import examine

        return examine()
    if ringcomm.unusable is not None:
        print(f"{ringcomm.unusable}\n`python -m ringcomm doctor` says more.", file=sys.stderr)
        return 1
    if options.command == "cost":
        from ringcomm.cli import cost

        return cost.run(options)
    if options.command == "simulate":
        from ringcomm.cli import simulate

        return simulate.run(options)
    if options.command == "explain":
        from ringcomm.cli import explain as explain_command

        return explain_command.run(options)
    if options.command == "bench":
        from ringcomm.cli import bench

        return bench.run(options, arguments)
    from ringcomm.cli.demo import run

    return run(options.nproc, options.epochs)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)
