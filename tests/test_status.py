"""`python -m ringcomm status` and `ringcomm.status()`: what running groups do, as others see it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm
from ringcomm.cli import main
from ringcomm.live import GroupStatus, running


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
            assert f"ranks 1 and 2 wait for rank 3 (pid {os.getpid()}), which is running" in reason
            for member in waiting.ranks[:2]:
                assert member.doing == "all_reduce(count=77, dtype=float32, op=sum) #1"
                assert member.waits_for == 2
            dist.all_reduce(torch.ones(77), group=group)
        else:
            waiting = own_group(3, lambda g: len([r for r in g.ranks if r.waits > 0.1]) == 2)
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
def test_a_hang_shows_who_waits_for_whom(kind: str) -> None:
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

    def seen(condition: Callable[[GroupStatus], bool]) -> GroupStatus:
        return until(lambda: next((g for g in ringcomm.status() if condition(g)), None))

    if rank.rank == 0:
        dist.all_reduce(torch.ones(77))
    else:
        waiting = seen(lambda g: g.ranks[0].waits > 0.1)
        assert [r.host for r in waiting.ranks] == ["a", "b"]
        assert waiting.ranks[0].doing == "all_reduce(count=77, dtype=float32, op=sum) #1"
        assert "rank 0 waits for rank 1" in waiting.why()[0]
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
        assert f"rank 0 waits for rank 1 (pid {os.getpid()}), which is running" in text
        found = [g for g in json.loads(command("--json")) if g["name"] == "shown here"]
        assert [r["waits_for"] for r in found[0]["ranks"]] == [1, None]
        assert "waits for rank 1" in found[0]["why"][0]
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
    assert process.wait(timeout=60) == 0
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
