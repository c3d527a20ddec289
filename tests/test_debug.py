"""RINGCOMM_DEBUG=info: what each group says of itself when it is made, on its rank 0 alone."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore

import ringcomm
from ringcomm.launch import run_ranks

TP = """
import torch, torch.distributed as dist
dist.init_process_group("ring", timeout=__import__("datetime").timedelta(seconds=60))
tp = dist.new_group([1, 2], group_desc="tp")
if dist.get_rank():
    dist.all_reduce(torch.ones(1), group=tp)
dist.barrier()
"""
INIT = """
import ringcomm
ringcomm.init()
ringcomm.new_group(algorithm="ring")
ringcomm.barrier()
"""
RIDES = """
import torch, torch.distributed as dist, ringcomm
dist.init_process_group("gloo")
ringcomm.all_reduce(torch.ones(1))
ringcomm.all_reduce(torch.ones(1))
dist.barrier()
"""
SHRINKS = """
import torch, torch.distributed as dist, ringcomm
dist.init_process_group("ring")
rank = dist.get_rank()
dist.barrier()
if rank < 2:
    ringcomm.shrink(exclude=[2])
    dist.barrier()
"""


def said(program: str, nproc: int, tmp_path: Path, level: str | None) -> list[str]:
    """What the ranks wrote to stderr."""
    with pytest.MonkeyPatch.context() as patch, (tmp_path / "said").open("w+b") as file:
        patch.setenv("RINGCOMM_TUNING", "off")
        patch.delenv("RINGCOMM_DEBUG", raising=False)
        if level is not None:
            patch.setenv("RINGCOMM_DEBUG", level)
        run_ranks(["-c", program], nproc, timeout=120, stderr=file)
        file.seek(0)
        return [line for line in file.read().decode().splitlines() if line.startswith("ringcomm")]


def titles(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("ringcomm: group")]


def test_groups_and_subgroups_say_what_they_chose(tmp_path: Path) -> None:
    lines = said(TP, 3, tmp_path, "info")
    first, second = titles(lines)
    assert first == "ringcomm: group 0, 3 ranks"
    assert re.fullmatch(r"ringcomm: group \S+, 2 ranks", second)
    host = os.uname().nodename
    assert f"ringcomm: host           {host} (ranks 0 to 2)" in lines
    assert f"ringcomm: host           {host} (ranks 1 and 2)" in lines
    for line in (
        "ringcomm: shared memory  memfd",
        "ringcomm: between hosts  none (one host)",
        "ringcomm: tuning         defaults",
        "ringcomm: all_reduce      any       64 KiB    with the call             16 KiB",
        "ringcomm:                           512 KiB   plan           one_shot   16 KiB",
        "ringcomm:                           any size  plan           direct     16 KiB",
    ):
        assert line in lines


def test_groups_of_ringcomms_own_calls(tmp_path: Path) -> None:
    lines = said(INIT, 2, tmp_path, "INFO")
    assert len(titles(lines)) == 2
    assert any(re.search(r"any size +plan +ring$", line) for line in lines)


def test_a_ring_on_another_backends_group(tmp_path: Path) -> None:
    lines = said(RIDES, 2, tmp_path, "Info")
    assert titles(lines) == ["ringcomm: group ring on 0, 2 ranks"]


def test_a_group_that_has_shrunk(tmp_path: Path) -> None:
    first, second = titles(said(SHRINKS, 3, tmp_path, "info"))
    assert first.endswith("3 ranks") and second.endswith("2 ranks")


@pytest.mark.parametrize("level", [None, "", "off", "OFF"])
def test_nothing_is_printed_unless_it_is_asked_for(level: str | None, tmp_path: Path) -> None:
    assert said(INIT, 2, tmp_path, level) == []


def test_other_levels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in ("trace", "1"):
        monkeypatch.setenv("RINGCOMM_DEBUG", level)
        with pytest.raises(ValueError, match=r"RINGCOMM_DEBUG is .*; it must be one of off, info"):
            ringcomm.ProcessGroupRing(HashStore(), 0, 1, timedelta(seconds=10))


def test_status_shows_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RINGCOMM_DEBUG", "info")
    ring = ringcomm.ProcessGroupRing(HashStore(), 0, 1, timedelta(seconds=10))
    (group,) = ringcomm.status()
    lines = [group.title(), *group.chosen.lines()]
    assert capfd.readouterr().err == "".join(f"ringcomm: {line}\n" for line in lines)
    assert lines[0] == "group without a name, 1 rank"
    del ring
