"""The checks that torch ships for its own backends, run on "ring" with CPU tensors: see suite.py.

They run in a process of their own, because their ranks are forked: in this one, other tests may
have started OpenMP's and autograd's threads, which a forked process cannot use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import values

# How many of the checks pass, by torch's version, on a host without GPUs: most of the others are
# for GPUs. Versions that were not counted have some tests more or fewer.
LEAST_PASSED = {"2.14": 101}
LEAST_PASSED_ELSEWHERE = 80


def passed(file: str, *arguments: str, **environment: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, *arguments]
    suite = subprocess.run(
        command,
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    print(suite.stdout[-3000:])
    assert suite.returncode == 0, suite.stdout + suite.stderr
    return int(re.search(r"(\d+) passed", suite.stdout.splitlines()[-1])[1])


@pytest.mark.slow
@pytest.mark.torch_suite
@pytest.mark.timeout(1200)
def test_torchs_own_checks() -> None:
    version = ".".join(torch.__version__.split(".")[:2])
    assert passed("suite.py") >= LEAST_PASSED.get(version, LEAST_PASSED_ELSEWHERE)


@pytest.mark.slow
@pytest.mark.torch_suite
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("world_size", "ranks_per_host", "links", "names", "least_passed"),
    [
        (4, 2, "auto", "hosts or no_sync or monitored_barrier or reduce_full_group", 15),
        (3, 1, "gloo", "hosts or any_source or full_group and (gather or scatter or to_all)", 10),
    ],
    ids=["2x2", "3x1"],
)
def test_some_of_them_on_hosts(
    world_size: int, ranks_per_host: int, links: str, names: str, least_passed: int
) -> None:
    environment = {
        "RINGCOMM_TEST_WORLD_SIZE": str(world_size),
        "RINGCOMM_TEST_RANKS_PER_HOST": str(ranks_per_host),
        "RINGCOMM_LINKS": links,
    }
    assert passed("suite.py", "-k", names, **environment) >= least_passed


@pytest.mark.slow
@pytest.mark.torch_suite
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    "RINGCOMM_TORCH_SOURCES" not in os.environ,
    reason="torch's wheels lack these tests; RINGCOMM_TORCH_SOURCES is to name a checkout of torch",
)
@values.torch_2_14
def test_torchs_own_checks_of_reconfigure() -> None:
    assert passed("fault_tolerance.py") >= 12
