"""`python -m ringcomm status` and `ringcomm.status()`: what running groups do, as others see it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from terminal import Terminal, environment

import ringcomm
from ringcomm.chosen import Chosen
from ringcomm.cli import main, status
from ringcomm.jobs import Job
from ringcomm.live import GroupStatus, RankStatus, running
from ringcomm.topology import Host


def until(found: Callable[[], GroupStatus | None]) -> GroupStatus:
    """What is found within a generous time."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if group := found():
            return group
        time.sleep(0.05)
    raise AssertionError(f"not seen; there is {running()}")


def own_group(ranks: int, condition: Callable[[GroupStatus], bool]) -> GroupStatus:
    """This process's group of so many ranks, once it is as wanted; read as others would."""
    pid = os.getpid()

    def find() -> GroupStatus | None:
        groups = [group for group in running() if pid in [rank.pid for rank in group.ranks]]
        groups = [group for group in groups if len(group.ranks) == ranks]
        return next((group for group in groups if condition(group)), None)

    return until(find)


def idle(rank: Rank) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    # The others may still be in the last one, waiting for each other.
    until(lambda: next((g for g in ringcomm.status() if not g.why()), None))
    (group,) = ringcomm.status()
    assert group.name == "default_pg"
    assert group.complete and not group.failure
    assert [r.rank for r in group.ranks] == [0, 1, 2]
    own = group.ranks[rank.rank]
    assert own.pid == os.getpid()
    assert own.state == "running" and own.doing == "" and own.waits_for is None
    assert own.completed == 3
    assert own.nbytes == 3 * 4000
    assert own.held > 4096
    assert group.ranks[0].host == os.uname().nodename
    # Before any of them waits for others again, which those would see.
    rank.store.set(f"seen by {rank.rank}", "")
    rank.store.wait([f"seen by {other}" for other in range(rank.world_size)])
    dist.barrier()


def test_a_job_that_works() -> None:
    on_processes(idle, 3, backend="ring")


def kept(text: str, nbytes: int) -> str:
    """The longest beginning of so many bytes that ends with a character."""
    return text.encode()[:nbytes].decode(errors="ignore")


def long_names(rank: Rank) -> None:
    names = ["emoji \U0001f3d6\ufe0f" * 9]
    names += [letter * offset + "\U0001f3d6" * 20 for offset in range(4) for letter in "x\xe9"]
    groups = [dist.new_group(group_desc=name) for name in names]
    for group in (None, *groups):
        dist.all_reduce(torch.ones(1), group=group)
    wanted = ["default_pg", *(kept(name, 63) for name in names)]
    assert [group.name for group in ringcomm.status()] == wanted
    pid = os.getpid()
    seen = [group.name for group in running() if pid in [rank.pid for rank in group.ranks]]
    assert sorted(seen) == sorted(wanted)
    if rank.rank == 0:
        found = [group["name"] for group in json.loads(command("--json"))]
        assert set(wanted) <= set(found)
        assert "emoji \\U0001f3d6" in command(PYTHONIOENCODING="ascii")
    dist.barrier()


def test_long_names_are_cut_between_characters() -> None:
    on_processes(long_names, 2, backend="ring")


def control_characters(rank: Rank) -> None:
    group = dist.new_group(group_desc="a\x1b[2J\x9bb\ttail")
    for each in (None, group):
        dist.all_reduce(torch.ones(1), group=each)
    assert [group.name for group in ringcomm.status()] == ["default_pg", "a?[2J?b?tail"]


def test_names_do_not_act_on_a_terminal() -> None:
    on_processes(control_characters, 1, backend="ring")


def hanging(rank: Rank, kind: str) -> None:
    group = dist.new_group([1, 2, 3], group_desc="tp")
    others = [1, 2]
    if rank.rank in others and kind == "all_reduce":
        dist.all_reduce(torch.ones(77), group=group)
    elif rank.rank in others and kind == "recv":
        dist.recv(torch.ones(77), 3, group=group)
    elif rank.rank == 3:
        if kind == "all_reduce":
            waiting = own_group(3, lambda g: len([r for r in g.ranks if r.waits > 0.1]) == 2)
            (reason,) = waiting.why()
            waited = rf"Ranks 1 and 2 have waited \d+\.\d s for rank 3 \(pid {os.getpid()}\)\. "
            what = "Rank 3 is alive but has not called a collective of this group."
            assert re.fullmatch(waited + re.escape(what), reason), reason
            for member in waiting.ranks[:2]:
                assert member.doing == "all_reduce(count=77, dtype=float32, op=sum) #1"
                assert member.waits_for == 2
            dist.all_reduce(torch.ones(77), group=group)
        else:
            waiting = own_group(3, lambda g: len([r for r in g.ranks if r.waits > 0.1]) == 2)
            assert "Rank 3 is alive but in no call of this group." in waiting.why()[0]
            for member in waiting.ranks[:2]:
                assert member.doing == (
                    "recv(count=77, dtype=float32, tag=0) from rank 3 (rank 2 of group tp)"
                )
                assert member.waits_for == 2
            for peer in others:
                dist.send(torch.ones(77), peer, group=group)
            own_group(3, lambda g: all(r.waits == 0 and not r.doing for r in g.ranks))
        assert waiting.name == "tp"
        assert [r.global_rank for r in waiting.ranks] == [1, 2, 3]
    dist.barrier()


@pytest.mark.parametrize("kind", ["all_reduce", "recv"])
def test_a_hang_shows_which_ranks_wait_for_which(kind: str) -> None:
    on_processes(hanging, 4, kind, backend="ring")


def stopped_and_ended(rank: Rank) -> None:
    if rank.rank == 2:
        dist.barrier()
        time.sleep(60)
    pid = ringcomm.status()[0].ranks[2].pid
    dist.barrier()
    if rank.rank == 0:
        os.kill(pid, signal.SIGSTOP)
        own_group(3, lambda g: g.ranks[2].state == "stopped")
        os.kill(pid, signal.SIGKILL)
    own_group(3, lambda g: g.ranks[2].state == "ended")
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(3))
    assert "has ended" in own_group(3, lambda g: bool(g.failure)).failure
    os._exit(0)


def test_who_is_stopped_ended_or_broken() -> None:
    with pytest.raises(AssertionError) as caught:
        on_processes(stopped_and_ended, 3, backend="ring")
    text = str(caught.value)
    assert "Traceback" not in text, text


def across_hosts(rank: Rank) -> None:
    os.environ.update(RINGCOMM_HOSTID="ab"[rank.rank], RINGCOMM_LINKS="gloo")
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=2)
    (group,) = ringcomm.status()  # before the other host's rank has said anything
    assert [(host.name, host.ranks) for host in group.chosen.hosts] == [("a", (0,)), ("b", (1,))]

    def seen(condition: Callable[[GroupStatus], bool]) -> GroupStatus:
        return until(lambda: next((g for g in ringcomm.status() if condition(g)), None))

    if rank.rank == 0:
        dist.all_reduce(torch.ones(77))
    else:
        waiting = seen(lambda g: g.ranks[0].waits > 0.1)
        assert [r.host for r in waiting.ranks] == ["a", "b"]
        assert waiting.ranks[0].doing == "all_reduce(count=77, dtype=float32, op=sum) #1"
        assert re.match(r"Rank 0 has waited .* s for rank 1 \(pid \d+\)\. ", waiting.why()[0])
        chosen = waiting.chosen
        assert (chosen.links, chosen.across) == ("gloo", "50us:1.25GB/s")
        assert chosen.size_classes[-1].zero_copy_from is None
        by = {one.algorithm for one in chosen.size_classes if one.collective == "all_reduce"}
        assert by == {"", "hierarchical_doubling"}
        dist.all_reduce(torch.ones(77))
    seen(lambda g: [r.completed for r in g.ranks] == [1, 1])
    dist.barrier()
    if rank.rank == 1:
        rank.store.set("stops", "")
        os.kill(os.getpid(), signal.SIGSTOP)
        rank.store.wait(["seen"])
    else:
        rank.store.wait(["stops"])
        pid = ringcomm.status()[0].ranks[1].pid
        seen(lambda g: g.ranks[1].state == "silent")
        os.kill(pid, signal.SIGCONT)
        seen(lambda g: g.ranks[1].state == "running")
        rank.store.set("seen", "")
    dist.barrier()


def test_ranks_of_another_host() -> None:
    on_processes(across_hosts, 2)


def command(*arguments: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "ringcomm", "status", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "COLUMNS": "160", **environment},
    ).stdout


def shown(rank: Rank) -> None:
    group = dist.new_group([0, 1], group_desc="shown here")
    if rank.rank == 0:
        dist.all_reduce(torch.ones(5), group=group)
    elif rank.rank == 1:
        own_group(2, lambda g: any(r.waits > 0.1 for r in g.ranks))
        text = command()
        assert "group shown here, 2 ranks" in text
        assert "all_reduce(count=5, dtype=float32, op=sum) #1" in text
        assert re.search(rf"Rank 0 has waited \d+\.\d s for rank 1 \(pid {os.getpid()}\)\.", text)
        assert text.index("Rank 0 has waited") < text.index("sent")
        found = [g for g in json.loads(command("--json")) if g["name"] == "shown here"]
        assert [r["waits_for"] for r in found[0]["ranks"]] == [1, None]
        assert "for rank 1" in found[0]["why"][0]
        (own,) = (g for g in ringcomm.status() if g.name == "shown here")
        assert found[0]["job"] == dataclasses.asdict(own.job)
        assert f"job {own.job}" in " ".join(text.split())
        assert found[0]["chosen"] == json.loads(json.dumps(dataclasses.asdict(own.chosen)))
        dist.all_reduce(torch.ones(5), group=group)
    dist.barrier()


def test_the_command() -> None:
    on_processes(shown, 3, backend="ring", timeout=120)


def opened_by_the_command(rank: Rank) -> None:
    dist.barrier()
    opened: list[tuple[str, int]] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            opened.append((str(arguments[0]), cast(int, arguments[2])))

    sys.addaudithook(note)
    assert main(["status", "--json"]) == 0
    memory = [flags for path, flags in opened if re.fullmatch(r"/proc/\d+/fd/\d+", path)]
    assert len(memory) >= rank.world_size
    assert all(flags & os.O_ACCMODE == os.O_RDONLY for flags in memory)
    dist.barrier()


def test_the_command_opens_memory_for_reading_only() -> None:
    on_processes(opened_by_the_command, 2, backend="ring")


def test_watching_shows_it_again() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ringcomm", "status", "--json", "--watch", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
        # Where the tests run in a shell's background, it would be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert all(isinstance(json.loads(line), list) for line in lines)


def test_memory_of_other_builds_is_passed_over() -> None:
    memory = os.memfd_create("ringcomm-" + "0" * 32)
    try:
        for size in (0, 100, 1 << 20):
            os.truncate(memory, size)
            assert ringcomm.status() == []
    finally:
        os.close(memory)


def test_seconds_must_be_positive() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        command("--watch", "0")
    assert "must be a positive number of seconds, got '0'" in caught.value.stderr


# ---- What stands where -------------------------------------------------------------------------


def a_rank(rank: int, **values: object) -> RankStatus:
    """A rank that has done much, in a call."""
    usual: dict[str, object] = {
        "rank": rank,
        "global_rank": rank,
        "pid": 4194300 - rank,
        "host": "node7",
        "state": "running",
        "doing": "all_reduce(count=268435456, dtype=float32, op=premul_sum) #1000000",
        "waits_for": 7,
        "waits": 1234.5,
        "completed": 999999,
        "enqueued_on_device": 1000000,
        "completed_on_device": 999998,
        "nbytes": 999_950_000_000,
        "held": 8_589_934_592,
        "held_on_device": 22_020_096,
    }
    return RankStatus(**{**usual, **values})  # type: ignore[arg-type]


def a_group(name: str = "default_pg", launcher: int = 4711, num_ranks: int = 8) -> GroupStatus:
    """One whose last rank does not come."""
    last = num_ranks - 1
    ranks = [a_rank(rank, waits_for=last) for rank in range(last)]
    ranks.append(a_rank(last, doing="", waits_for=None, waits=0.0))
    chosen = Chosen((Host("node7", tuple(range(num_ranks))),), "memfd", "", "", "", "off", ())
    job, here = Job("train.py --lr 0.1", launcher), tuple(rank.rank for rank in ranks)
    return GroupStatus(name, job, True, "", tuple(ranks), chosen, here)


def text_of(groups: list[GroupStatus], width: int) -> list[str]:
    return [line.plain for line in status.lines(groups, width)]


@pytest.mark.parametrize("width", [80, 100])
def test_no_number_is_broken(width: int) -> None:
    lines = text_of([a_group("g" * 63)], width)
    assert max(map(len, lines)) <= width
    for number in ("4194300", "999999", "999998/1000000", "1 TB", "8.59 GB", "22 MB", "20.6 min"):
        assert sum(f" {number}" in line or f", {number}" in line for line in lines) >= 1, number
    assert sum("op=premul_sum) #1000000" in line for line in lines) == 7
    assert sum("count=268435456," in line for line in lines) == 7


def test_groups_without_a_gpu_have_no_columns_for_it() -> None:
    on_host: dict[str, object] = {"waits_for": None, "waits": 0.0, "held_on_device": 0}
    on_host |= {"enqueued_on_device": 0, "completed_on_device": 0}
    ranks = tuple(a_rank(rank, **on_host) for rank in range(2))
    (row,) = (line for line in text_of([a_group()], 80) if line.startswith("rank "))
    assert row.split()[4:] == ["on", "GPU", "sent", "memory", "memory"]
    group = dataclasses.replace(a_group(), ranks=ranks)
    (row,) = (line for line in text_of([group], 80) if line.startswith("rank "))
    assert row.split() == ["rank", "pid", "state", "done", "sent", "memory"]


def test_what_is_wrong_comes_first() -> None:
    broken = dataclasses.replace(a_group("tp", num_ranks=2), failure="rank 1 has ended")
    idle_one = a_group("idle", num_ranks=1)
    text = "\n".join(text_of([idle_one, a_group(), broken], 80))
    begin = text.index("job train.py --lr 0.1 (launcher 4711)")
    for said in (
        "Group default_pg, 8 ranks:",
        "Group tp, 2 ranks:",
        "It is broken: rank 1 has ended",
    ):
        assert text.index(said) < begin
    assert "Group idle" not in text
    assert text.count("job train.py") == 1


def test_jobs_are_distinguished() -> None:
    lines = text_of([a_group("default_pg", 1), a_group("default_pg", 2), a_group("tp", 1)], 120)
    titles = [line for line in lines if line.startswith(("job ", "group "))]
    assert titles == [
        "job train.py --lr 0.1 (launcher 1)",
        "group default_pg, 8 ranks",
        "group tp, 8 ranks",
        "job train.py --lr 0.1 (launcher 2)",
        "group default_pg, 8 ranks",
    ]
    assert "Group default_pg, 8 ranks, job train.py --lr 0.1 (launcher 2):" in lines


def why(*ranks: RankStatus) -> list[str]:
    return dataclasses.replace(a_group(), ranks=ranks).why()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"completed": 0}, "Rank 1 is alive but has not called a collective of this group."),
        ({}, "Rank 1 is alive but has not called a collective of this group since #999999."),
        ({"doing": "recv(count=1)"}, "Rank 1 is in recv(count=1)."),
        ({"state": "stopped"}, "Rank 1 is stopped, by a signal or a debugger."),
        ({"state": "ended"}, "Rank 1 has ended."),
        ({"state": "left"}, "Rank 1 has closed the group."),
        ({"state": "silent"}, "Rank 1 is on host node7, which does not answer."),
    ],
)
def test_why_says_what_the_awaited_rank_does(values: dict[str, object], said: str) -> None:
    idle = {"doing": "", "waits_for": None, "waits": 0.0}
    (reason,) = why(a_rank(0, waits_for=1, waits=36.7), a_rank(1, **{**idle, **values}))
    assert reason == f"Rank 0 has waited 36.7 s for rank 1 (pid 4194299). {said}"


def test_why_distinguishes_chains_from_circles() -> None:
    idle = {"doing": "", "waits_for": None, "waits": 0.0}
    chain, circle = why(
        a_rank(0, waits_for=1, waits=2.0),
        a_rank(1, waits_for=2, waits=3.0),
        a_rank(2, **idle),
        a_rank(3, waits_for=4),
        a_rank(4, waits_for=3),
        a_rank(5, waits_for=3),
    )
    assert chain.startswith("Ranks 0 and 1 have waited 3.0 s for rank 2 (pid 4194298). ")
    assert circle == "Ranks 3 to 5 wait for each other."


# ---- In a terminal, and in a file --------------------------------------------------------------

# As the command, with groups that need not be there.
WITH_GROUPS = """
import sys
import ringcomm.live
from ringcomm.cli import main
from test_status import a_group
ringcomm.live.running = lambda: [a_group(), a_group("tp")]
sys.exit(main(sys.argv[1:]))
"""


def with_groups(*arguments: str) -> list[str]:
    return [sys.executable, "-c", WITH_GROUPS, "status", *arguments]


def plain(said: str) -> list[str]:
    """Without what colours it."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).replace("\r", "").split("\n")


def test_a_terminal_of_80_columns() -> None:
    terminal = Terminal(with_groups())
    assert terminal.code() == 0
    lines = plain(terminal.said)
    assert max(map(len, lines)) <= 80
    assert [line.rstrip() for line in lines if line] == [
        line for line in text_of([a_group(), a_group("tp")], 80) if line
    ]


def test_watching_in_a_terminal_of_24_lines() -> None:
    terminal = Terminal(with_groups("--watch", "0.1"))
    said = terminal.read_until(lambda said: said.count("the terminal is full") > 2)
    terminal.press(b"\x03")
    assert terminal.code() == 130
    assert "Traceback" not in terminal.said
    shown = plain(said)
    first = shown[: next(i for i, line in enumerate(shown) if "the terminal is full" in line) + 1]
    everything = text_of([a_group(), a_group("tp")], 80)
    assert len(first) == 23
    assert [line.rstrip() for line in first[:22]] == everything[:22]
    assert first[22].startswith(f"{len(everything) - 22} more lines: the terminal is full")
    assert "Ranks 0 to 6 have waited 20.6 min for rank 7 (pid 4194293)" in " ".join(first[:3])


def test_watching_into_a_file(tmp_path: Path) -> None:
    output = tmp_path / "seen"
    with output.open("w") as file, (tmp_path / "errors").open("w+") as errors:
        process = subprocess.Popen(
            with_groups("--watch", "0.1"),
            stdout=file,
            stderr=errors,
            env={**environment(), "FORCE_COLOR": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        end = time.monotonic() + 60
        while output.read_text().count("group tp") < 3 and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert (tmp_path / "errors").read_text() == ""
    text = output.read_text()
    assert "\x1b" not in text
    blocks = re.split(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n", text, flags=re.M)
    assert blocks[0] == "" and len(blocks) >= 4
    expected = "\n".join(text_of([a_group(), a_group("tp")], 80))
    assert blocks[1].strip("\n") == blocks[2].strip("\n") == expected.strip("\n")
