"""`ringcomm.stragglers`: which rank is late, said the same on all ranks."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from documents import blocks, page
from played_hosts import RANKS_PER_HOST
from programs import python
from ranks import Rank, on_processes, outcomes

import ringcomm
from ringcomm import Straggler
from ringcomm.records.arrivals import Arrivals, Late
from ringcomm.slow_links import Link

module: Any = sys.modules["ringcomm.stragglers"]  # the package has a function of its name
STEPS = 30
GROUPS = {"ring": "0 (default_pg)", "gloo": "ring on 0 (ring on default_pg)"}


def steps(late: int | None, group: Any = None) -> None:
    for _ in range(STEPS):
        time.sleep(0.02 if dist.get_rank() == late else 0.002)
        ringcomm.all_reduce(torch.ones(3), group=group)


def one_is_late(_: Rank, late: int) -> list[Straggler]:
    steps(late)
    return ringcomm.stragglers()


@pytest.mark.parametrize(("world_size", "backend"), [(2, "ring"), (3, "ring"), (2, "gloo")])
def test_the_late_rank_is_named(world_size: int, backend: str) -> None:
    found = on_processes(one_is_late, world_size, 1, backend=backend)
    assert all(each == found[0] for each in found)
    (late,) = found[0]
    assert (late.rank, late.num_calls) == (1, STEPS)
    assert late.group == (
        "0 (default_pg)" if backend == "ring" else "ring on 0 (ring on default_pg)"
    )
    assert late.share_last > 0.5
    assert 0.2 < late.waited_s < late.elapsed_s
    assert late.where == "in all_reduce(count=3, dtype=float32)"
    expected = (
        f"rank 1 (host {late.host}, group {late.group}) came last in {late.share_last:.0%} of"
    )
    assert str(late).startswith(f"{expected} {STEPS} calls, the others waited ")


def init(rank: Rank, **environment: str) -> None:
    os.environ.update(environment)
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)


def with_lines(rank: Rank) -> list[Straggler]:
    init(rank, RINGCOMM_FLIGHT_STACKS="1")
    return one_is_late(rank, 0)


def test_where_lines_are_recorded() -> None:
    ((late,), _) = on_processes(with_lines, 2)
    line = steps.__code__.co_firstlineno + 3
    assert late.where.endswith(f"test_stragglers.py:{line} in steps")


def test_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANKS_PER_HOST, "1")
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    ((late,), _) = on_processes(one_is_late, 2, 1, backend="ring")
    assert (late.rank, late.host) == (1, "host1")


def test_a_link_is_named_once_however_many_ranks_are_late_by_it() -> None:
    slow, fast = Link(2, 0, 10**7, 2.0, 20.0), Link(0, 2, 10**7, 0.2, 20.0)
    call: Any = SimpleNamespace(group="0", description="", frames=(), operation="barrier")
    call.inputs = call.outputs = (0, "")
    late = [Late(0, 20, 1.0, 0.9, call), Late(1, 20, 0.5, 0.4, call), Late(3, 20, 0.7, 0.1, call)]
    group: Any = SimpleNamespace(group_name="0", group_desc="")
    hosts = {0: 0, 1: 0, 2: 1, 3: 1}
    names = {rank: f"host{host}" for rank, host in hosts.items()}
    known = module._Group(group, Arrivals(60, 20.0, 3.0, late), [slow, fast], hosts, names)
    link, by_itself = module._named(known)
    assert (link.cause, link.rank, link.host, link.elapsed_s) == ("link", 2, "host1", 20.0)
    assert link.waited_s == pytest.approx(1.5)
    assert (by_itself.cause, by_itself.rank, by_itself.waited_s) == ("late", 3, 0.7)


def only_the_last_calls(_: Rank) -> list[list[int]]:
    steps(1)
    all_of_them = ringcomm.stragglers()
    steps(0)
    return [
        [each.rank for each in found] for found in (all_of_them, ringcomm.stragglers(last=STEPS))
    ]


def test_only_the_last_calls() -> None:
    assert on_processes(only_the_last_calls, 2, backend="ring") == [[[1], [0]]] * 2


def in_a_group(_: Rank) -> tuple[int, int] | str:
    group = dist.new_group([2, 1])
    steps(1)
    if dist.get_rank() == 0:
        with pytest.raises(ValueError, match="this rank is not in the group"):
            ringcomm.stragglers(group)
        return "not in the group"
    steps(2, group)
    (late,) = ringcomm.stragglers(group)
    return late.rank, late.num_calls


def test_in_a_group() -> None:
    """Ranks are those of the default group, and the calls of other groups are left out."""
    found = on_processes(in_a_group, 3, backend="ring")
    assert found == ["not in the group", (2, STEPS), (2, STEPS)]


def alone(_: Rank) -> list[Straggler]:
    steps(0)
    return ringcomm.stragglers()


def test_one_rank_is_never_late() -> None:
    assert on_processes(alone, 1, backend="ring") == [[]]


def before_any_call(_: Rank) -> list[Straggler]:
    return ringcomm.stragglers()


def test_before_any_call() -> None:
    assert on_processes(before_any_call, 2, backend="ring") == [[], []]


def refused(rank: Rank, last: list[Any]) -> None:
    ringcomm.stragglers(last=last[rank.rank])


@pytest.mark.parametrize(
    ("last", "kind", "text"),
    [
        (0, ValueError, "last must be positive, got 0"),
        ("7", TypeError, "last must be an integer or None, got str"),
        (True, TypeError, "last must be an integer or None, got bool"),
    ],
)
def test_a_wrong_argument_raises_on_all(last: Any, kind: type[Exception], text: str) -> None:
    found = outcomes(refused, 2, [None, last], backend="ring")
    assert isinstance(found[0].error, dist.DistBackendError)
    assert f"rank 1's arguments were refused: stragglers: {text}" in str(found[0].error)
    assert isinstance(found[1].error, kind) and str(found[1].error) == text


def test_ranks_that_differ() -> None:
    for found in outcomes(refused, 2, [5, None], backend="ring"):
        assert isinstance(found.error, ValueError)
        assert str(found.error) == "last must be the same on all ranks, got [5, None]"


def records_nothing(rank: Rank) -> None:
    init(rank, RINGCOMM_FLIGHT_RECORDS="0" if rank.rank == 1 else "100")
    ringcomm.stragglers()


def test_a_rank_that_records_nothing() -> None:
    found = outcomes(records_nothing, 2)
    assert isinstance(found[0].error, dist.DistBackendError)
    assert "rank 1" in str(found[0].error) and "nothing is recorded" in str(found[0].error)
    assert isinstance(found[1].error, RuntimeError) and "is recorded" in str(found[1].error)


def test_what_the_page_shows(tmp_path: Path) -> None:
    document = page("howto/slow.md")
    script, (command, *_), (shown, *_) = (blocks(document, each) for each in ("python", "sh", ""))
    (tmp_path / "train.py").write_text("".join(script))
    setting, torchrun, *arguments = command.split()
    assert torchrun == "torchrun"
    variable, value = setting.split("=")
    job = python("-m", "torch.distributed.run", *arguments, cwd=tmp_path, **{variable: value})
    assert job.returncode == 0, job.stderr
    numbers, name = r"[\d.]+", r"host \S+,"

    def without_figures(text: str) -> str:
        return re.sub(numbers, "N", re.sub(name, "HOST", text.strip()))

    assert without_figures(job.stdout.replace(f"{tmp_path}/", "")) == without_figures(shown)
