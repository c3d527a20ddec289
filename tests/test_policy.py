"""`python -m ringcomm explain --choose`, against what groups publish of how their calls go."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm
from ringcomm import tuning
from ringcomm.chosen import SizeClass
from ringcomm.cli import main, names
from ringcomm.host import machine


def choices(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[SizeClass]:
    assert main(["explain", *arguments, "--choose", "--json"]) == 0
    return [SizeClass(**one) for one in json.loads(capsys.readouterr().out)["size_classes"]]


def published(
    rank: Rank, ranks_per_host: int, file: str = "off", reproducible: str = "off"
) -> list[SizeClass]:
    os.environ.update(RINGCOMM_TUNING=file, RINGCOMM_LINKS="gloo")
    os.environ["RINGCOMM_REPRODUCIBLE"] = reproducible
    os.environ["RINGCOMM_HOSTID"] = f"host{rank.rank // ranks_per_host}"
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    dist.barrier()  # the first rank of each host publishes before it comes here
    (group,) = ringcomm.status()
    dist.barrier()
    return list(group.chosen.size_classes)


@pytest.mark.parametrize("reproducible", names.REPRODUCIBLE)
@pytest.mark.parametrize(("world_size", "ranks_per_host"), [(2, 2), (4, 4), (4, 2), (3, 1)])
def test_groups_choose_what_is_printed(
    world_size: int, ranks_per_host: int, reproducible: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ["--ranks-per-host", str(ranks_per_host)]
    hosts += ["--links", "gloo"] if ranks_per_host < world_size else []
    printed: list[SizeClass] = []
    for collective in names.TUNED:
        for dtype in ("float32", "bfloat16"):
            what = [collective, "--world-size", str(world_size), "--dtype", dtype, *hosts]
            what += ["--reproducible", reproducible]
            printed += choices(capsys, *what)
    for found in on_processes(published, world_size, ranks_per_host, "off", reproducible):
        assert sorted(found, key=_key) == sorted(printed, key=_key)


def _key(one: SizeClass) -> str:
    nbytes = one.most_nbytes or 1 << 62
    return f"{one.collective} {one.dtype} {nbytes:020}"


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "all_reduce", "--choose", "--world-size", "2"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "all_reduce of float32 by shm",
        "2 ranks on 1 host",
        "",
        "    up to  path           algorithm  zero copy",
        "   64 KiB  with the call             from 16 KiB",
        "  512 KiB  plan           one_shot   yes",
        " any size  plan           direct     yes",
        "",
        "Bytes are those of the larger of a rank's two buffers.",
        "Zero copy: if the tensors of all ranks lie in shared memory.",
    ]


@pytest.mark.parametrize("collective", names.TUNED)
@pytest.mark.parametrize("executor", ["shm", "messages", "fused"])
def test_it_fits_80_columns(
    collective: str,
    executor: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    what = ["explain", collective, "--choose", "--world-size", "16", "--executor", executor]
    assert main(what) == 0
    if executor == "shm":
        assert main([*what, "--ranks-per-host", "8", "--across", "5us:25GB/s:1us"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 6 and max(map(len, lines)) <= 80


def paths(classes: list[SizeClass]) -> list[tuple[int | None, str]]:
    return [(one.most_nbytes, one.algorithm or one.path) for one in classes]


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    four = ["all_reduce", "--world-size", "4", "--executor"]
    mib = 1 << 20
    eager = mib // 3 // 512 * 512
    assert paths(choices(capsys, *four, "fused")) == [
        (eager, "with the call"),
        (mib, "one_shot"),
        (8 * mib, "recursive_doubling"),
        (None, "ring"),
    ]
    assert paths(choices(capsys, *four, "messages")) == [(19_999_996, "direct"), (None, "ring")]
    rounded_once = choices(capsys, *four, "messages", "--dtype", "float16")
    assert paths(rounded_once) == [(None, "direct")]
    assert all(one.zero_copy_from is None for one in rounded_once)


def test_a_selected_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    found = choices(capsys, "all_reduce", "--world-size", "4", "--algorithm", "double_tree")
    assert paths(found) == [(32 << 10, "with the call"), (None, "double_tree")]
    assert [one.zero_copy_from for one in found] == [None, None]


def test_a_tuning_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "tuning.json"
    rule = tuning.Rule(2, "all_reduce", 1 << 20, "bidirectional_ring")
    tuning.write(file, tuning.Tuning(machine(), {}, (rule,), across="1us:100GB/s"))
    two = ["all_reduce", "--world-size", "2"]
    defaults = choices(capsys, *two)
    tuned = choices(capsys, *two, "--tuning", str(file))
    assert (1 << 20, "bidirectional_ring") in paths(tuned) and tuned != defaults
    (found, _) = on_processes(published, 2, 2, str(file))
    float32 = [one for one in found if (one.collective, one.dtype) == ("all_reduce", "float32")]
    assert float32 == tuned
    # Other sizes, and devices, have no rule. Between hosts the network counts.
    for others in (["--world-size", "3"], [*two[1:], "--executor", "messages"]):
        assert choices(capsys, *others, "--tuning", str(file)) == choices(capsys, *others)
    hosts = ["all_reduce", "--world-size", "4", "--ranks-per-host", "2"]
    known = choices(capsys, *hosts, "--across", "1us:100GB/s")
    assert choices(capsys, *hosts, "--tuning", str(file)) == known != choices(capsys, *hosts)

    monkeypatch.setenv("RINGCOMM_TUNING", str(file))
    assert choices(capsys, *two) == tuned
    assert choices(capsys, *two, "--tuning", "off") == defaults
    assert main(["explain", *two, "--choose"]) == 0
    assert f"tuning: {file}" in capsys.readouterr().out
    missing = tmp_path / "none.json"
    assert main(["explain", *two, "--choose", "--tuning", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err


def test_every_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    for dtype in names.DTYPES:
        found = choices(capsys, "reduce", "--world-size", "17", "--dtype", dtype)
        rounds = getattr(torch, dtype).itemsize < 4
        assert {one.dtype for one in found} == {dtype}
        assert found[-1].algorithm == ("direct" if rounds else "double_tree")


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    what = ["broadcast", "--world-size", "6", "--ranks-per-host", "4,2", "--dtype", "int8"]
    assert main(["explain", *what, "--choose", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    classes = document.pop("size_classes")
    assert document == {
        "collective": "broadcast",
        "dtype": "int8",
        "executor": "shm",
        "world_size": 6,
        "num_hosts": 2,
        "tuned_by": "",
    }
    assert set(classes[0]) == {field.name for field in dataclasses.fields(SizeClass)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dtype", "float32"], "--dtype is of --choose, which is not given"),
        (["--tuning", "off"], "--tuning is of --choose, which is not given"),
        (["--executor", "shm"], "--executor is of --choose, which is not given"),
        (["--choose", "gather"], "--choose is for all_reduce, reduce_scatter, "),
        (["--choose", "--timeline"], "--timeline draws a plan, got --choose, too"),
        (["--choose", "--root", "0"], "--root has no meaning with --choose, got 0"),
        (["--choose", "-o", "a.html"], "--output has no meaning with --choose, got a.html"),
        (["--choose", "--beside", "ring"], "--beside has no meaning with --choose, got ring"),
        (["--choose", "--nbytes", "1K"], "--nbytes has no meaning with --choose, got 1024"),
        (["--choose", "--links", "ucx"], "--links is of several hosts"),
        (["--choose", "--across", "ndr"], "--across is of several hosts"),
        (["--choose", "--dtype", "float"], "did you mean 'float"),
        (["--choose", "--algorithm", "chain"], "all_reduce has no algorithm 'chain'"),
        (["--choose", "--ranks-per-host", "3"], "ranks_per_host must divide world_size"),
        (
            ["--choose", "--executor", "fused", "--world-size", "17"],
            "calls are not kernels if there are more than 16 ranks",
        ),
        (
            ["--choose", "--executor", "fused", "--ranks-per-host", "2,3"],
            "calls are not kernels if the ranks are on several hosts",
        ),
    ],
)
def test_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
