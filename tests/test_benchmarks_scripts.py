"""The benchmarks beside that of collectives: small versions of what the README starts."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import reduce_kernels
import torch
from test_benchmarks import run
from torch.distributed import ReduceOp

from ringcomm import _C


@pytest.mark.slow
def test_lecture() -> None:
    result = run("benchmarks/lecture.py", "--nproc", "2", "--num-elements", "4K")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = re.findall(
        r"(\w+) +(ring|gloo) +([\d.]+) (.s) +([\d.]+) (.s)\s+([\d.e+-]+) +([\d.e+-]+) +([\d.e+-]+)",
        result.stdout,
    )
    assert [row[:2] for row in rows] == [
        ("all_reduce", "ring"),
        ("all_reduce", "gloo"),
        ("reduce_scatter", "ring"),
        ("reduce_scatter", "gloo"),
    ]
    # bytes that n = 2 ranks send in all, over n durations, in units of 1024^3
    for name, _, first, unit, _, _, bandwidth, _, _ in rows:
        sent = 4 * 4096 * (2 if name == "all_reduce" else 1)
        seconds = float(first) * {"ms": 1e-3, "µs": 1e-6}[unit]
        assert float(bandwidth) == pytest.approx(sent / (2 * seconds) / 1024**3, rel=0.02)


def test_reduce_kernels(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    result = run(
        *("benchmarks/reduce_kernels.py", "--devices", "cpu", "--dtypes", "all", "--ops", "all"),
        *("--sizes", "4K", "--iters", "1", "--csv", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11 * 4
    assert all(float(row["ringcomm_s"]) > 0 for row in rows)
    compared = {row["dtype"] for row in rows if row["op"] == "sum" and row["torch_s"] != "nan"}
    assert {"float", "bfloat16", "int32"} <= compared


def test_a_gpu_spins_until_all_calls_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is measured is the kernels, not the launches."""
    happened: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            happened.append("event")

        def synchronize(self) -> None:
            happened.append("synchronize")

        def elapsed_time(self, end: Event) -> float:
            return 60.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: happened.append("spin"))
    seconds = reduce_kernels.device_timer(lambda: happened.append("call"), 20)
    assert seconds() == pytest.approx(0.060 / 20)
    assert happened == ["spin", "event", *["call"] * 20, "event", "synchronize"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    for script in ("lecture.py", "training_step.py"):
        result = run(f"benchmarks/{script}", "--backends", "ring,nccl")
        assert result.returncode == 2 and "needs a GPU per rank" in result.stderr
    result = run("benchmarks/reduce_kernels.py", "--devices", "cuda")
    assert result.returncode == 2 and "needs a GPU" in result.stderr


@pytest.mark.slow
def test_training_step() -> None:
    result = run("benchmarks/training_step.py", "--iters", "3")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [
        line.split() for line in result.stdout.splitlines() if line.startswith((" conv ", " gpt "))
    ]
    assert [row[:2] for row in rows] == [[m, b] for m in ("conv", "gpt") for b in ("ring", "gloo")]
    for row in rows:
        unit = {"ms": 1.0, "µs": 1e-3}
        alone, ddp, _, _, all_reduce = (
            float(value) * unit[name] for value, name in zip(row[2:12:2], row[3:12:2], strict=True)
        )
        hidden = float(row[12].rstrip("%")) / 100
        assert hidden == pytest.approx(1 - (ddp - alone) / all_reduce, rel=0.2, abs=0.3)


def test_reduce_local() -> None:
    inputs = [torch.tensor([1.0, -2.0, 5.0]) * factor for factor in (1, 2, 4)]
    output = torch.empty(3)
    for op, expected in (
        (ReduceOp.SUM, sum(inputs)),
        (ReduceOp.AVG, sum(inputs) / 3),
        (ReduceOp.MAX, torch.stack(inputs).amax(0)),
    ):
        _C.reduce_local(inputs, output, op)
        assert torch.equal(output, expected)
    with pytest.raises(ValueError, match="an input of 3 Float on cpu and an output of 4 Float"):
        _C.reduce_local(inputs, torch.empty(4), ReduceOp.SUM)
    with pytest.raises(ValueError, match="at least one input, got none"):
        _C.reduce_local([], output, ReduceOp.SUM)
    with pytest.raises(ValueError, match="needs a factor"):
        _C.reduce_local(inputs, output, ReduceOp.PREMUL_SUM)
