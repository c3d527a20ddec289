"""The console command `ringcomm`, which does what `python -m ringcomm` does.

It lies outside of the package, whose import must wait until the command needs torch.
"""

from __future__ import annotations

import sys

ARGUMENT = "-m ringcomm"  # by this argv[0] ringcomm/__init__.py knows the command


def main() -> int:
    """Runs the command that this process's arguments name. Returns its exit code."""
    called, sys.argv[0] = sys.argv[0], ARGUMENT
    try:
        from ringcomm import cli
    finally:
        sys.argv[0] = called
    return cli.main(prog="ringcomm")
