"""torch's debug server shows the groups of all ranks."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from programs import python

from ringcomm.chosen import Chosen, SizeClass
from ringcomm.jobs import Job
from ringcomm.live import GroupStatus, RankStatus
from ringcomm.topology import Host

pytest.importorskip(
    "torch.distributed.debug._frontend", reason="this torch has no debug server with handlers"
)
pytest.importorskip("requests", reason="torch's debug server needs requests")
pytest.importorskip("tabulate", reason="torch's debug server needs tabulate")

# Rank 1 comes late to an all-reduce, and rank 0's thread meanwhile looks at the page.
JOB = """
import os, sys, threading, time, urllib.request
import torch
import torch.distributed as dist
from torch.distributed.debug import start_debug_server, stop_debug_server
import ringcomm.debug_server

def look():
    end = time.monotonic() + 60
    text = ""
    while time.monotonic() < end and "has not called" not in text:
        try:
            text = urllib.request.urlopen(f"http://localhost:{sys.argv[1]}/ringcomm").read().decode()
        except OSError:
            time.sleep(0.05)
    print(text)
    store.set("seen", "")

if __name__ == "__main__":
    dist.init_process_group("ring")
    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(torch.ones(1))
    start_debug_server(
        int(sys.argv[1]), start_method="spawn", handlers=[ringcomm.debug_server.GroupsHandler()]
    )
    if dist.get_rank() == 0:
        thread = threading.Thread(target=look)
        thread.start()
    else:
        store.wait(["seen"])
    dist.all_reduce(torch.ones(1000))
    if dist.get_rank() == 0:
        thread.join()
        stop_debug_server()
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_rank_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = str(listener.getsockname()[1])
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    page = python(*launcher, tmp_path / "job.py", port, timeout=120).stdout
    text = re.sub(r"\s+", " ", page)
    assert "Group default_pg, 2 ranks:" in text
    assert "Rank 0 has waited" in text
    assert "Rank 1 is alive but has not called a collective of this group since #1." in text
    assert "all_reduce(count=1000, dtype=float32, op=sum) #2; waits for rank 1" in text


def rank(number: int, doing: str, here: int) -> RankStatus:
    """As a host knows it that has the ranks 2 * here and 2 * here + 1."""
    knows = number // 2 == here
    return RankStatus(
        number, number, 100 + number if knows else 0, f"host{number // 2}", "running",
        doing if knows else "", None, 0.0,
        completed=0, enqueued_on_device=0, completed_on_device=0, nbytes=0, held=0,
        held_on_device=0,
    )  # fmt: skip


def group(here: int, doing: str) -> GroupStatus:
    hosts = (Host("host0", (0, 1)), Host("host1", (2, 3)))
    classes = (SizeClass("all_reduce", "float32", None, "plan", "ring", None),)
    chosen = Chosen(hosts, "memfd", "gloo", "50us:1GB/s", "", "off", classes)
    ranks = tuple(rank(number, doing, here) for number in range(4))
    return GroupStatus("dp", Job("train.py", 7), True, "", ranks, chosen, (2 * here, 2 * here + 1))


def test_each_rank_is_as_its_host_knows_it() -> None:
    from ringcomm.debug_server import merged

    first, second = group(0, "barrier #1"), group(1, "barrier #2")
    of_hosts = [[first, second] for first, second in [(first, first), (second, second)]]
    broken = [[replace(each, failure="late") for each in of_hosts[1]]]
    both = merged([*of_hosts[:1], *broken])
    assert len(both) == 2  # two groups of the same ranks
    for each in both:
        assert [rank.doing for rank in each.ranks] == ["barrier #1"] * 2 + ["barrier #2"] * 2
        assert [rank.pid for rank in each.ranks] == [100, 101, 102, 103]
        assert each.failure == "late"


def test_what_a_rank_answers_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringcomm import debug_server

    groups = [group(0, "barrier #1"), group(1, "barrier #2")]
    monkeypatch.setattr(debug_server, "status", lambda: groups)
    assert debug_server.groups_of(debug_server.answer()) == groups


def test_a_process_that_has_it_ends_well() -> None:
    """What torch knows of this module it lets go of after Python has ended, without its lock."""
    program = "import ringcomm.debug_server as each; vars(each).clear()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
