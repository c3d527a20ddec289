"""Tunings: what follows from what was measured, and that groups go by it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from own_modules import own_path
from programs import python
from ranks import Rank, on_processes

import ringcomm
from ringcomm import tuning
from ringcomm.bench import busy
from ringcomm.bench.tune import rules_of
from ringcomm.cli import doctor, main, tune
from ringcomm.cli.names import TUNED
from ringcomm.host import machine
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.plans import COLLECTIVES
from ringcomm.tuning import MOST_NBYTES, Rule, Time, Tuning

RING = Rule(3, "all_reduce", MOST_NBYTES, "ring")
TIME = Time(2, "reduce", 5, 1.5e-6)


def test_neighbouring_sizes_of_one_algorithm_are_one_rule() -> None:
    seconds = {
        100: {"ring": 1.0, "direct": 2.0},
        200: {"ring": 1.0, "direct": 2.0},
        400: {"ring": 2.0, "direct": 1.0},
    }
    assert rules_of(2, "all_reduce", seconds) == [
        Rule(2, "all_reduce", 300, "ring"),
        Rule(2, "all_reduce", 400, "direct"),  # nothing was measured beyond
    ]


def test_an_algorithm_is_kept_where_another_is_hardly_faster() -> None:
    seconds = {
        1: {"ring": 1.09, "direct": 1.0},
        2: {"ring": 1.11, "direct": 1.0},
        4: {"ring": 1.0, "direct": 1.11},
        8: {"ring": 1.0},  # where direct was not offered
    }
    assert [rule.algorithm for rule in rules_of(2, "all_reduce", seconds)] == [
        "ring",
        "direct",
        "ring",
    ]


def test_names_in_help_can_be_carried_out_in_several_ways() -> None:
    several = {
        collective
        for collective, algorithms in ALGORITHMS.items()
        if sum(not each.two_level for each in algorithms.values()) > 1
    }
    assert set(TUNED) == several - {"all_to_all"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = Tuning("2 x CPU", {"date": "2026-01-02"}, (RING, Rule(2, "reduce", 5, "chain")))
    file = tmp_path / "new" / "tuning.json"
    tuning.write(file, written)
    assert tuning.read(file) == written
    assert list(file.parent.iterdir()) == [file]
    assert tuning.describe(file, written) == f"{file} of 2026-01-02, for 2 and 3 ranks"
    written = dataclasses.replace(written, across="2ms:0.125GB/s")
    tuning.write(file, written)
    assert tuning.read(file) == written
    assert tuning.describe(file, written).endswith("2 and 3 ranks and hosts 2ms:0.125GB/s apart")
    written = dataclasses.replace(written, times=(TIME, Time(2, "barrier", 0, 0.0)))
    tuning.write(file, written)
    assert tuning.read(file) == written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no tuning"),
        ("[]", "is no tuning"),
        ('{"format": 2}', "its format is 2, and this ringcomm reads 1"),
        ('{"format": 1, "machine": "", "made": {}}', "'rules'"),
        ('{"format": 1, "machine": "", "made": {}, "rules": [], "across": "far"}', "got 'far'"),
    ],
)
def test_other_files_are_no_tunings(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        tuning.read(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": "fastest"}, "'all_reduce' has no algorithm 'fastest'"),
        ({"collective": "all_sum"}, "'all_sum' has no algorithm"),
        ({"world_size": 0}, "out of range"),
        ({"most_nbytes": 1 << 64}, "out of range"),
    ],
)
def test_rules_of_others_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    file = tmp_path / "tuning.json"
    tuning.write(file, Tuning("", {}, (dataclasses.replace(RING, **change),)))
    with pytest.raises(ValueError, match=said):
        tuning.read(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"collective": "all_sum"}, "no collective 'all_sum'"),
        ({"world_size": 0}, "out of range"),
        ({"nbytes": -1}, "out of range"),
        ({"seconds": float("nan")}, "out of range"),
        ({"seconds": -1e-6}, "out of range"),
    ],
)
def test_times_of_others_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    file = tmp_path / "tuning.json"
    tuning.write(file, Tuning("", {}, (), times=(dataclasses.replace(TIME, **change),)))
    with pytest.raises(ValueError, match=said):
        tuning.read(file)


def test_only_this_machines_file_is_used(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    assert tuning.state(file)[1].startswith("none: `python -m ringcomm tune`")
    tuning.write(file, Tuning(machine(), {}, (RING,)))
    assert tuning.state(file)[0] == tuning.read(file)
    tuning.write(file, Tuning("9 x else", {}, (RING,)))
    assert tuning.state(file) == (
        None,
        f"not used: {file} was made on another machine (9 x else)",
    )
    file.write_text("{")
    assert tuning.state(file)[1].startswith(f"not used: {file} is no tuning")


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_TUNING", "off")
    assert tuning.path() is None and tuning.rules() == []
    monkeypatch.setenv("RINGCOMM_TUNING", "here.json")
    assert tuning.path() == Path("here.json")
    monkeypatch.delenv("RINGCOMM_TUNING")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert tuning.path() == Path("/cache/ringcomm/tuning.json")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert tuning.path() == Path("/home/me/.cache/ringcomm/tuning.json")


def test_the_doctor_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problems: list[str] = []
    file = tmp_path / "ringcomm" / "tuning.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RINGCOMM_TUNING", raising=False)
    tuning.write(file, Tuning(machine(), {"date": "today"}, (RING,)))
    assert doctor._tuning(problems) == f"{file} of today, for 3 ranks"
    monkeypatch.setenv("RINGCOMM_TUNING", "off")
    assert doctor._tuning(problems) == "none: RINGCOMM_TUNING is off"
    assert problems == []
    monkeypatch.setenv("RINGCOMM_TUNING", str(tmp_path / "none.json"))
    assert doctor._tuning(problems) == "none" and len(problems) == 1


def sums(rank: Rank, files: list[str]) -> tuple[bool, bool]:
    """Whether a group without an algorithm sums as a ring does, and as one without a tuning."""
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(rank.rank))

    def summed(algorithm: str | None) -> torch.Tensor:
        tensor = values.clone()
        ringcomm.all_reduce(tensor, group=ringcomm.new_group(algorithm=algorithm))
        return tensor

    os.environ["RINGCOMM_TUNING"] = "off"
    by_ring, untuned = summed("ring"), summed(None)
    os.environ["RINGCOMM_TUNING"] = files[rank.rank]
    tuned = summed(None)
    return torch.equal(tuned, by_ring), torch.equal(tuned, untuned)


def test_groups_go_by_the_file_that_their_first_rank_reads(tmp_path: Path) -> None:
    ring, tree = tmp_path / "ring.json", tmp_path / "tree.json"
    tuning.write(ring, Tuning("", {}, (RING,)))
    tuning.write(tree, Tuning("", {}, (dataclasses.replace(RING, algorithm="double_tree"),)))
    files = [str(ring), "off", str(tree)]
    assert on_processes(sums, 3, files, backend="ring") == [(True, False)] * 3


def without_the_file(rank: Rank) -> str:
    os.environ["RINGCOMM_TUNING"] = "/nowhere/tuning.json"
    try:
        dist.new_group(backend="ring")
    except OSError as error:
        return str(error)
    return ""


def test_a_file_that_is_named_and_not_there_is_an_error() -> None:
    (said,) = set(on_processes(without_the_file, 2, backend="ring"))
    assert "/nowhere/tuning.json" in said


def test_the_command_writes_a_tuning(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    few = ("--world-sizes", "2", "-b", "64K", "-e", "128K", "-n", "2")
    result = python("-m", "ringcomm", "tune", "all_reduce,broadcast", "-o", file, *few, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"# wrote {file}" in result.stdout
    assert "# all_reduce among 2 ranks" in result.stdout and "128 KiB" in result.stdout
    assert result.stdout.count(", untuned ") == 4
    made = tuning.read(file)
    assert made.machine == machine() and made.made["ringcomm"] == ringcomm.__version__
    assert {rule.collective for rule in made.rules} == {"all_reduce", "broadcast"}
    assert {rule.world_size for rule in made.rules} == {2}
    for collective in ("all_reduce", "broadcast"):
        ends = [rule.most_nbytes for rule in made.rules if rule.collective == collective]
        assert ends[-1] == 128 << 10
    assert {time.collective for time in made.times} == set(COLLECTIVES)
    assert {time.world_size for time in made.times} == {2}
    of_one = [time for time in made.times if time.collective == "gather"]
    assert [time.nbytes for time in of_one[:3]] == [1 << 10, 3 << 9, 1 << 11]
    assert of_one[-1].nbytes == 256 << 10 and all(0 < time.seconds < 10 for time in of_one)


@pytest.mark.parametrize("load", [0.0, 0.9])
def test_the_command_says_when_the_machine_is_busy(
    load: float, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule(2, "reduce", 1 << 16, "chain")
    seconds = {str(1 << 16): {"chain": 1e-3}}
    found = {"rules": [dataclasses.asdict(rule)], "seconds": seconds, "untuned": {str(1 << 16): 1}}
    monkeypatch.setattr(tune, "_measured", lambda options, ranks, *times: [] if times else [found])
    monkeypatch.setattr(busy.Others, "load", lambda others: load * len(os.sched_getaffinity(0)))
    assert main(["tune", "reduce", "--world-sizes", "2", "-o", str(tmp_path / "tuning.json")]) == 0
    assert ("# other processes kept" in capsys.readouterr().out) == (load > 0)


def test_a_place_that_is_none_is_found_out_first(tmp_path: Path) -> None:
    """What must be writable is the folder, in which a new file takes the place of the old one."""
    (tmp_path / "file").touch()
    wrong = tmp_path / "file" / "tuning.json"
    result = python("-m", "ringcomm", "tune", "reduce", RINGCOMM_TUNING=str(wrong))
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        result.stderr.startswith("python -m ringcomm tune: ") and str(wrong.parent) in result.stderr
    )


def test_a_folder_without_a_place_for_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "made" / "tuning.json"
    tuning.prepare(file)
    assert list(file.parent.iterdir()) == []

    def touch(path: Path) -> None:
        raise PermissionError(f"{path} is not to be")  # root may write everywhere

    with pytest.raises(PermissionError):
        tuning.prepare(own_path(touch=touch)(file))


def test_the_command_needs_a_place_for_the_file() -> None:
    result = python("-m", "ringcomm", "tune", "reduce", RINGCOMM_TUNING="off")
    assert result.returncode == 2 and "--output" in result.stderr
