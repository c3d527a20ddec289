"""The checks that torch ships for its own backends, run on "ring" with CPU tensors: see suite.py.

They run in a process of their own, because their ranks are forked: in this one, other tests may
have started OpenMP's and autograd's threads, which a forked process cannot use.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.torch_suite
@pytest.mark.timeout(1200)
def test_torchs_own_checks() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "suite.py"]
    suite = subprocess.run(
        command, cwd=Path(__file__).parent, text=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    print(suite.stdout[-3000:])
    assert suite.returncode == 0, suite.stdout + suite.stderr
    assert " passed" in suite.stdout.splitlines()[-1]
