"""What `python -m ringcomm` and `ringcomm` do: a command per module of this package."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import ringcomm
from ringcomm import _library, usage

# Each names its module, which has `add_arguments(parser)` and `run(options)` and is imported when
# the command is given. What needs torch it imports in `run`: --help and usage errors come at once,
# and the doctor must work where little else does.
COMMANDS = {
    "demo": "train a small network data-parallel, check it, and compare with gloo",
    "bench": "time collectives over ringcomm, gloo, NCCL and MPI",
    "tune": "find the fastest algorithms of this machine, for later groups to use",
    "explain": "write a plan as a picture, or print how calls go",
    "cost": "memory and communication of training a transformer",
    "simulate": "how long collectives take on a network, at any scale",
    "trace": "record what all ranks do in a collective, for Perfetto",
    "status": "show what running jobs are doing, and which rank waits for which",
    "metrics": "serve figures of running jobs to Prometheus",
    "flight": "read flight records: which call did not end, which rank is late",
    "bits": "compare two runs: where results first have other bits",
    "doctor": "report what is installed, and what is wrong with it",
}


def main(arguments: Sequence[str] | None = None, prog: str = "python -m ringcomm") -> int:
    """Runs one command and returns its exit code.

    Args:
        arguments: the command and its own arguments; those of this process if not given. The
            command finds them in `options.command_line`, to start itself again as ranks.
        prog: how this was called, for usage texts.

    Raises:
        SystemExit: after --help, or of arguments that are wrong, with the code 2.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = usage.Parser(
        prog=prog,
        usage="%(prog)s COMMAND ...",
        epilog="commands:\n" + "\n".join(f"  {name:10}{does}" for name, does in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ringcomm {ringcomm.__version__}")
    parser.add_argument(
        "command", choices=COMMANDS, metavar="COMMAND", help="COMMAND --help shows its own"
    )
    command = parser.parse_args(arguments[:1]).command
    does = f"{COMMANDS[command].capitalize()}."
    parser = usage.Parser(prog=f"{prog} {command}", description=does)
    return usage.run(parser, lambda: _run(command, parser, arguments))


def _run(command: str, parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    module = importlib.import_module(f"ringcomm.cli.{command}")
    module.add_arguments(parser)
    options = parser.parse_args(arguments[1:], argparse.Namespace(command_line=arguments))
    if command != "doctor":
        _library.need()
    code: int = module.run(options)
    return code
