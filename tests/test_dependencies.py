"""The package imports torch and nothing else; the commands need more."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import importlib.abc, sys

sys.path.insert(0, {root!r})

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("blocked " + name, name=name)

sys.meta_path.insert(0, Blocker())
import ringcomm, ringcomm.cost, ringcomm.parallel
import torch

ringcomm.init()
tensor = torch.ones(4)
ringcomm.all_reduce(tensor)
ringcomm.plan.all_reduce("ring", world_size=4).verify()
{more}
print("done")
"""


def required(name: str) -> set[str]:
    """A distribution's name, and those of all that it requires without an extra."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:  # of another platform
            continue
        waiting += [re.split(r"[^\w.-]", each)[0] for each in requirements if "extra" not in each]
    return found


def others() -> set[str]:
    """The installed top-level packages that are neither torch nor what torch requires."""
    allowed = required("torch") | {"ringcomm"}
    return {
        package
        for package, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & allowed
    }


def ran(more: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(root=str(ROOT), blocked=others(), more=more)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_package_needs_torch_and_nothing_else() -> None:
    assert {"numpy", "rich", "psutil", "pytest"} <= others()
    result = ran()
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


@pytest.mark.parametrize("module", ["numpy", "rich.table", "ringcomm.cli.simulate"])
def test_what_is_blocked_cannot_be_imported(module: str) -> None:
    result = ran(f"import {module}")
    assert result.returncode == 1 and "ModuleNotFoundError: blocked" in result.stderr
