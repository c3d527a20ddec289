"""Warnings in what programs say to stderr."""

from __future__ import annotations

import re

SHOW_ALL = ("PYTHONWARNINGS", "default")  # for the programs' environment
# What Python by itself hides where it comes from the files of others, and what torch says of a
# machine whose name leads nowhere.
_OF_OTHERS = re.compile(
    r"/(site-packages|lib/python3\.\d+)/.*: \w*(Deprecation|Resource|Import)Warning|hostname"
)


def complaints(stderr: str) -> list[str]:
    """The lines that warn, of Python's warnings, of torch's and of loggers."""
    return [
        line
        for line in stderr.splitlines()
        if re.search(r"Warning\b|\[[WE]\d* |\bWARN", line) and not _OF_OTHERS.search(line)
    ]
