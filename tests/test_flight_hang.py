"""A rank that times out has the others write their flight records before it raises.

Else a rank that hangs would leave none: a launcher ends it as soon as another one has raised.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from documents import blocks, page
from flight_records import HANGS, SHORT, analysis, files_in, init, init_recorded, wait_for
from played_hosts import RANKS_PER_HOST
from programs import python
from ranks import DIED, Rank, on_processes, outcomes

DOCUMENT = page("howto/debugging.md")
ALL_FILES = [f"rank_{rank}" for rank in range(4)]
(SHOWN,) = (block for block in blocks(DOCUMENT, "") if "missing ranks: {2}" in block)


def test_the_analyzer_names_the_rank_that_hung_in_a_job_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HANGS)
    (shown,) = (block for block in blocks(DOCUMENT, "sh") if "\ntorchrun " in block)
    (export, *settings), (_, *options, program), *_ = map(str.split, shown.splitlines())
    variable, prefix = settings[0].split("=")
    assert (export, program, Path(prefix).name) == ("export", script.name, "rank_")
    command = ("-m", "torch.distributed.run", "--standalone", *options, script)
    folder = tmp_path / "records"
    job = python(*command, **{variable: f"{folder}/rank_", "OMP_NUM_THREADS": "1"})
    assert job.returncode != 0 and "Timed out after" in job.stderr, job.stderr
    assert files_in(folder) == ALL_FILES
    assert SHOWN in analysis(folder)


def sleeps(_: Rank) -> None:
    time.sleep(600)


def keeps_the_gil(_: Rank) -> None:
    """As another library may."""
    ctypes.PyDLL(None).sleep(600)


def waits_for_the_store(rank: Rank) -> None:
    rank.store.wait(["never"])


def spins(_: Rank) -> None:
    while True:
        pass


def hangs(
    rank: Rank, folder: Path, how: Callable[[Rank], None], who: list[int], members: list[int]
) -> list[str]:
    """Returns what is in the folder when the rank raises."""
    rank.meet()
    init_recorded(rank, folder, SHORT)
    group = dist.new_group(members, timeout=SHORT)
    dist.all_reduce(torch.ones(3))
    if rank.rank in members:
        dist.all_reduce(torch.ones(3), group=group)
    rank.store.set(f"pid {rank.rank}", str(os.getpid()))
    if rank.rank in who:
        how(rank)
    if rank.rank not in members:
        rank.store.wait(["raised"])
        return []
    with pytest.raises(dist.DistBackendError, match="Timed out after"):
        dist.all_reduce(torch.ones(1000), group=group if len(members) < 4 else None)
    files = files_in(folder)
    if rank.rank == min(set(members) - set(who)):
        for other in who:
            os.kill(int(rank.store.get(f"pid {other}")), signal.SIGKILL)
        rank.store.set("raised", "1")
    return files


def all_files_and_analysis(
    folder: Path, how: Callable[[Rank], None], who: list[int], members: list[int]
) -> str:
    for rank, outcome in enumerate(outcomes(hangs, 4, folder, how, who, members)):
        assert outcome.ended == ("returned" if rank not in who else DIED), outcome.traceback
        if rank in members and rank not in who:
            assert outcome.result == ALL_FILES
    assert files_in(folder) == ALL_FILES
    return analysis(folder)


@pytest.mark.parametrize("how", [sleeps, keeps_the_gil, waits_for_the_store, spins])
def test_wherever_a_rank_hangs_it_writes_its_record(
    tmp_path: Path, how: Callable[[Rank], None]
) -> None:
    text = all_files_and_analysis(tmp_path, how, [2], [0, 1, 2, 3])
    assert "missing ranks: {2}" in text
    assert text.count("Not all ranks") == 1


def test_two_ranks_hang(tmp_path: Path) -> None:
    text = all_files_and_analysis(tmp_path, sleeps, [0, 2], [0, 1, 2, 3])
    assert "missing ranks: {0, 2}" in text


# 2 leads the second host, 3 does not; where all hosts have one rank, all lead.
@pytest.mark.parametrize("links", ["gloo", "ucx"])
@pytest.mark.parametrize(("ranks_per_host", "who"), [(2, 2), (2, 3), (1, 2)])
def test_a_rank_of_another_host_hangs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    links: str,
    ranks_per_host: int,
    who: int,
) -> None:
    monkeypatch.setenv(RANKS_PER_HOST, str(ranks_per_host))
    monkeypatch.setenv("RINGCOMM_LINKS", links)
    text = all_files_and_analysis(tmp_path, sleeps, [who], [0, 1, 2, 3])
    assert f"missing ranks: {{{who}}}" in text
    assert text.count("Not all ranks") == 1


def test_ranks_outside_of_the_group_write_theirs_too(tmp_path: Path) -> None:
    """Without them the analyzer compares nothing."""
    text = all_files_and_analysis(tmp_path, sleeps, [1], [0, 1])
    assert "missing ranks: {1}" in text
    assert text.count("Not all ranks") == 1


def comes_late(rank: Rank, folder: Path) -> str:
    rank.meet()
    init_recorded(rank, folder, SHORT)
    dist.all_reduce(torch.ones(3))
    if rank.rank == 2:
        rank.store.wait(["raised"])
    with pytest.raises(dist.DistBackendError) as raised:
        dist.all_reduce(torch.ones(1000))
    rank.store.set("raised", "1")
    return str(raised.value)


def test_a_rank_that_comes_too_late_is_the_one_that_is_missing(tmp_path: Path) -> None:
    for rank, error in enumerate(on_processes(comes_late, 4, tmp_path)):
        assert f"recorded in {tmp_path}/rank_{rank}" in error
    assert SHOWN in analysis(tmp_path)


def stops(rank: Rank, folder: Path) -> None:
    rank.meet()
    init_recorded(rank, folder, SHORT)
    dist.all_reduce(torch.ones(3))
    if rank.rank == 2:
        rank.store.set("pid", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        rank.store.wait(["written"])
        return
    with pytest.raises(dist.DistBackendError, match="Timed out after"):
        dist.all_reduce(torch.ones(1000))
    assert files_in(folder) == ["rank_0", "rank_1", "rank_3"]
    rank.store.add("raised", 1)
    if rank.rank == 0:
        while rank.store.add("raised", 0) < 3:
            time.sleep(0.01)
        os.kill(int(rank.store.get("pid")), signal.SIGCONT)
        wait_for(folder / "rank_2")
        rank.store.set("written", "1")


def test_a_rank_that_is_stopped_writes_once_it_goes_on(tmp_path: Path) -> None:
    on_processes(stops, 4, tmp_path)
    assert SHOWN in analysis(tmp_path)


def fails_while_another_sleeps(rank: Rank, folder: Path, settings: list[dict[str, str]]) -> int:
    """Returns how many threads the group has added to the process."""
    os.environ.update(settings[rank.rank], HOME=str(folder))
    rank.meet()
    before = len(os.listdir("/proc/self/task"))
    init(rank, SHORT)
    dist.barrier()
    added = len(os.listdir("/proc/self/task")) - before
    if rank.rank == 1:
        rank.store.wait(["raised"])
        return added
    with pytest.raises(dist.DistBackendError, match="Timed out after"):
        dist.all_reduce(torch.ones(3))
    rank.store.set("raised", "1")
    return added


def test_a_rank_that_writes_no_files_is_not_asked_and_has_no_thread_for_it(tmp_path: Path) -> None:
    no, yes = {"RINGCOMM_FLIGHT_DUMP": "0"}, {"RINGCOMM_FLIGHT_DUMP": "1"}
    files = tmp_path / ".cache" / "torch"
    usual = on_processes(fails_while_another_sleeps, 2, tmp_path, [no, no])
    assert os.listdir(tmp_path) == []
    assert on_processes(fails_while_another_sleeps, 2, tmp_path, [no, yes]) == [
        usual[0],
        usual[1] + 1,
    ]
    assert os.listdir(tmp_path) == []
    assert on_processes(fails_while_another_sleeps, 2, tmp_path, [yes, no]) == [
        usual[0] + 1,
        usual[1],
    ]
    assert os.listdir(files) == ["comm_lib_trace_rank_0"]
