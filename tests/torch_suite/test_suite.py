"""The checks that torch ships for its own backends, run on "ring" with CPU tensors: see suite.py.

They run in a process of their own, because their ranks are forked: in this one, other tests may
have started OpenMP's and autograd's threads, which a forked process cannot use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import values

# How many of the checks pass, by torch's version, on a host without GPUs: most of the others are
# for GPUs. Versions that were not counted have some tests more or fewer.
LEAST_PASSED = {"2.14": 101}
LEAST_PASSED_ELSEWHERE = 80
# On hosts: the ranks, how many of them a host has, the links, which of the checks, and how many of
# them pass at least.
ON_HOSTS = {
    "2x2": (4, 2, "auto", "hosts or no_sync or monitored_barrier or reduce_full_group", 15),
    "3x1": (
        *(3, 1, "gloo"),
        *("hosts or any_source or full_group and (gather or scatter or to_all)", 10),
    ),
}


def passed(file: str, arguments: Sequence[str] = (), **environment: str) -> int:
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


def passed_on(hosts: str | None) -> int:
    if hosts is None:
        return passed("suite.py")
    world_size, ranks_per_host, links, names, _ = ON_HOSTS[hosts]
    return passed(
        "suite.py",
        ["-k", names],
        RINGCOMM_TEST_WORLD_SIZE=str(world_size),
        RINGCOMM_TEST_RANKS_PER_HOST=str(ranks_per_host),
        RINGCOMM_LINKS=links,
    )


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str | None, Future[int]]]:
    """How many checks pass, by hosts. All begin together, as ranks wait for most of their time."""
    wanted = [
        item.callspec.params["hosts"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_torchs_own_checks"
    ]
    with ThreadPoolExecutor(len(wanted)) as pool:
        yield {hosts: pool.submit(passed_on, hosts) for hosts in wanted}


@pytest.mark.slow
@pytest.mark.torch_suite
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("hosts", [None, *ON_HOSTS])
def test_torchs_own_checks(hosts: str | None, runs: dict[str | None, Future[int]]) -> None:
    version = ".".join(torch.__version__.split(".")[:2])
    least = LEAST_PASSED.get(version, LEAST_PASSED_ELSEWHERE)
    assert runs[hosts].result() >= (least if hosts is None else ON_HOSTS[hosts][-1])


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
