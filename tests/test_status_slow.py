"""`python -m ringcomm status --slow`: which ranks the others of running groups wait for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from own_modules import own
from ranks import Rank, on_processes
from rich.text import Text

from ringcomm.chosen import Chosen
from ringcomm.cli import main, status
from ringcomm.jobs import Job
from ringcomm.live import GroupStatus, RankStatus
from ringcomm.topology import Host
from ringcomm.waiting import Waits, Watched, watch

CALL = "all_reduce(count=3, dtype=float32, op=sum)"
TICK = 0.002
CHOSEN = Chosen((Host("vm", (0, 1, 2)),), "memfd", "", "", "", "off", ())


def rank(number: int, doing: str = "", waits_for: int | None = None) -> RankStatus:
    """Of the group 10, 11, 12."""
    waits = 0.0 if waits_for is None else 0.001
    return RankStatus(
        number, 10 + number, 100 + number, "vm", "running", doing, waits_for, waits,
        completed=0, enqueued_on_device=0, completed_on_device=0, nbytes=0, held=0,
        held_on_device=0,
    )  # fmt: skip


IDLE = [rank(n) for n in range(3)]


def group(ranks: list[RankStatus], here: tuple[int, ...] = (0, 1, 2)) -> GroupStatus:
    return GroupStatus("dp", Job("train.py", 1), True, "", tuple(ranks), CHOSEN, here)


def seen(looks: list[list[RankStatus]], here: tuple[int, ...] = (0, 1, 2)) -> Waits:
    """What is made of so many looks, at a group that does a call in each."""
    watched = Watched(group(IDLE, here))
    for ranks in looks:
        watched.look(ranks, TICK)
    done = [replace(each, completed=len(looks)) for each in IDLE]
    return watched.result(group(done, here), len(looks) * TICK)


def late(number: int, last: int) -> list[RankStatus]:
    """All others are in a call, and wait for one that is not."""
    return [
        rank(n) if n == last else rank(n, f"{CALL} #{number}", waits_for=last) for n in range(3)
    ]


def test_a_rank_that_is_late() -> None:
    found = seen([late(number, last=1) for number in range(50)])
    (only,) = found.late
    assert (only.rank, only.times_last, only.worst) == (11, 50, CALL)
    assert only.waited == pytest.approx(50 * TICK)
    assert (found.num_calls, found.seconds) == (50, 50 * TICK)


def test_several_looks_at_a_call_add_up() -> None:
    found = seen([late(number // 5, last=1) for number in range(100)])
    (only,) = found.late
    assert only.times_last == 20 and only.waited == pytest.approx(100 * TICK)


def test_ranks_that_are_late_by_turns() -> None:
    found = seen([late(number, last=number % 3) for number in range(99)])
    assert found.late == [] and found.waited == pytest.approx(99 * TICK)


def test_one_long_wait_is_no_habit() -> None:
    assert seen([late(1, last=1)] * 100).late == []


def in_call(number: int, waits_for: int | None, doing: str = CALL) -> RankStatus:
    return rank(number, f"{doing} #7", waits_for)


@pytest.mark.parametrize(
    "look",
    [
        pytest.param([in_call(0, 1), rank(1), rank(2)], id="another has not come either"),
        pytest.param([in_call(0, 1), in_call(1, None), in_call(2, 1)], id="all have come"),
        pytest.param([in_call(0, 1), in_call(1, 0), in_call(2, 1)], id="each for another"),
        pytest.param([in_call(0, 1), rank(1), in_call(2, 1, "barrier()")], id="other calls"),
        pytest.param(
            [rank(0, "recv(count=3)", 1), rank(1), rank(2, "recv(count=3)", 1)], id="messages"
        ),
    ],
)
def test_what_is_no_wait_for_the_last_rank(look: list[RankStatus]) -> None:
    assert seen([look] * 50).waited == 0


def test_a_rank_that_waits_for_another_that_waits() -> None:
    chain = [in_call(0, 2), rank(1), in_call(2, 1)]
    assert seen([chain]).waited == pytest.approx(TICK)


def test_ranks_of_other_hosts_do_not_count() -> None:
    assert seen([[in_call(0, 1), rank(1), rank(2)]], here=(0, 1)).waited == pytest.approx(TICK)


def text_of(waits: Waits) -> str:
    lines: list[Text] = list(status._slow_lines([waits], 200))
    return "\n".join(line.plain for line in lines)


def test_its_words() -> None:
    text = text_of(seen([late(number, last=1) for number in range(50)]))
    assert text.splitlines() == [
        "job train.py (launcher 1)",
        "Rank 11 (pid 101, host vm) of group dp, 3 ranks, is late: the others waited 0.1 s of 0.1 "
        f"s for it, most in {CALL}. It was seen to come last in 50 of 50 calls.",
    ]
    assert "No rank of group dp, 3 ranks, was late too often: in 9 calls, 0 s of" in text_of(
        seen([IDLE] * 9)
    )
    assert "Group dp, 3 ranks, ended no call." in text_of(seen([]))
    hangs = Watched(group(IDLE)).result(group(late(1, last=1)), 1.0)
    assert "Group dp, 3 ranks: Ranks 10 and 12 have waited 0.0 s for rank 11" in text_of(hangs)
    assert list(map(str, status._slow_lines([], 80))) == ["No group of yours runs on this host."]


def slowed(rank: Rank) -> dict[str, Any] | None:
    """Works on until the command has seen it. What rank 0 got to know."""
    process = None
    if rank.rank == 0:
        command = [sys.executable, "-m", "ringcomm", "status", "--slow", "2", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    goes_on = torch.ones(1)
    while goes_on.item():
        time.sleep(0.04 if rank.rank == 1 else 0.01)
        goes_on.fill_(process is None or process.poll() is None)
        dist.all_reduce(goes_on, op=dist.ReduceOp.MIN)
    if process is None:
        return None
    groups = json.loads(process.communicate()[0])
    own = [it for it in groups if os.getpid() in [each["pid"] for each in it["group"]["ranks"]]]
    assert len(own) == 1 and process.returncode == 0
    found: dict[str, Any] = own[0]
    return found


def test_a_running_job() -> None:
    found, _ = on_processes(slowed, 2, backend="ring")
    assert found is not None
    assert 2 <= found["seconds"] < 60 and found["num_calls"] > 10
    assert [late["rank"] for late in found["late"]] == [1]
    assert found["late"][0]["worst"] == "all_reduce(count=1, dtype=float32, op=min)"
    assert 0.2 * found["seconds"] < found["waited"] < found["seconds"]


def test_no_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(watch(0.01), list)
    assert main(["status", "--slow", "0.01"]) == 0
    assert capsys.readouterr().out


def test_again_and_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    found = seen([late(number, last=1) for number in range(50)])
    monkeypatch.setattr("ringcomm.waiting.watch", lambda seconds: [found])
    monkeypatch.setattr(status, "time", own(time, sleep=sleep))
    assert main(["status", "--slow", "0.01", "--watch", "600"]) == 130
    assert all(590 < seconds <= 600 for seconds in slept), "from one beginning to the next"
    written = capsys.readouterr().out
    assert written.count("is late: the others waited") == 3
    assert len(re.findall(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$", written, re.MULTILINE)) == 3


def test_a_time_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--slow", "0"])
    assert "must be a positive number of seconds" in capsys.readouterr().err
