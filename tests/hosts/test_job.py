"""Jobs on hosts: what is seen of ranks that end, fail, are killed or stand still."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from hosts import Local, Network
from hosts.conftest import needs_hosts
from hosts.job import PATIENCE, JobFailedError, placed

STEPS = """
import os, sys, time
from hosts.report import report
report({"rank": int(os.environ["RANK"]), "word": os.environ.get("WORD"), "arguments": sys.argv[1:]})
end = sys.argv[1]
if end == "sleeps":
    while True:
        time.sleep(0.02)
        report("awake")
if end == "raises":
    raise ValueError("what was wrong")
if end == "exits":
    print("out")
    sys.exit("the reason")
sys.exit(int(end))
"""


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return path


@pytest.mark.parametrize("warm", [True, False])
def test_ends(steps: Path, warm: bool) -> None:
    with Local(2) as local:
        jobs = {
            end: local.start(steps, end, "more", placement=[1], env={"WORD": "said"}, warm=warm)
            for end in ("0", "7", "raises", "exits")
        }
        (found,) = jobs["0"].succeed()
        assert (found.rank, found.host, found.status) == (0, 1, 0)
        assert found.reports == [{"rank": 0, "word": "said", "arguments": ["0", "more"]}]
        assert jobs["7"].wait()[0].status == 7
        with pytest.raises(JobFailedError, match=r"ranks \[0\] have failed(.|\n)*what was wrong"):
            jobs["raises"].succeed()
        exited = jobs["exits"].wait()[0]
        assert (exited.status, exited.stdout, exited.stderr) == (1, "out\n", "the reason\n")


@needs_hosts
def test_signals(steps: Path) -> None:
    with Network(2) as network:
        job = network.start(steps, "sleeps", ranks_per_host=2)
        for rank in range(4):
            assert job.hear(rank)["rank"] == rank
            assert job.hear(rank) == "awake"
        job.stop(1)
        time.sleep(0.1)  # until it stands
        said = len(job.reports(1))
        time.sleep(0.3)
        assert len(job.reports(1)) == said
        job.resume(1)
        while len(job.reports(1)) == said:
            time.sleep(0.01)
        before = time.monotonic()
        assert before <= job.kill(0) <= time.monotonic()
        with pytest.raises(JobFailedError, match="rank 0 has ended"):
            while True:
                job.hear(0)
        assert job.running() == [1, 2, 3]
        job.kill_host(1)
        while job.running() != [1]:
            time.sleep(0.01)
        assert [result.status for result in job.results()] == [-9, None, -9, -9]


def test_what_does_not_end_says_where_it_is(steps: Path) -> None:
    with Local(1) as local:
        job = local.start(steps, "sleeps")
        with pytest.raises(
            JobFailedError, match=r"have not ended after 1 s(.|\n)*steps\.py"
        ) as info:
            job.wait(1)
        assert info.value.results[0].status == -signal.SIGABRT
        silent = local.start(steps, "0")
        silent.hear(0)
        with pytest.raises(JobFailedError, match="has ended and reported no more"):
            silent.hear(0)


@needs_hosts
def test_commands() -> None:
    with Network(2) as network:
        show = [sys.executable, "-c", "import socket; print(socket.gethostname())"]
        job = network.start_commands({1: show, 0: [*show[:2], "raise SystemExit(3)"]})
        shown, ended = job.wait()
        assert (shown.host, shown.stdout, shown.status) == (1, "rc-host1\n", 0)
        assert (ended.host, ended.status) == (0, 3)
        assert network.start_commands({0: ["no such program"]}).wait()[0].status == 127


@needs_hosts
def test_killing_a_host_kills_the_children_of_commands() -> None:
    with Network(2) as network:
        job = network.start_commands({1: ["sh", "-c", "sleep 1000 & echo started; wait"]})
        while not job.results()[0].stdout:
            time.sleep(0.01)
        space = os.readlink(f"/proc/{network.keeper(1)}/ns/pid")
        assert len(inside(space)) == 3
        job.kill_host(1)
        assert job.wait()[0].status == -signal.SIGKILL
        deadline = time.monotonic() + PATIENCE
        while inside(space) != [network.keeper(1)] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert inside(space) == [network.keeper(1)]


def inside(space: str) -> list[int]:
    """The processes of a namespace."""
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == space:
                found.append(int(link.parts[2]))
    return found


def test_placements() -> None:
    assert placed("block", 2, 2) == [0, 0, 1, 1]
    assert placed("round robin", 2, 2) == [0, 1, 0, 1]
    assert placed([1, 0, 1], 2, 1) == [1, 0, 1]
    with pytest.raises(ValueError, match="'random', not"):
        placed("random", 2, 2)
