"""The benchmark of training, small, and its checks of losses and bits."""

from __future__ import annotations

import dataclasses
import json
import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import training
from jobs import CallTimer, WrongResultsError
from programs import ROOT, python
from training_models import MODELS, make_batch, num_parameters

CASE = ("gpt2-2m", "DDP", "float32")
CONTENDERS = ("ring", "ring, shared memory", "gloo")


@pytest.fixture
def transformers() -> None:
    pytest.importorskip("transformers", reason="no transformers: pip install -e '.[models]'")


@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("model", "unit", "blocks"), [("gpt2-2m", "tokens", 4), ("vit-3m", "images", 6)]
)
def test_training(model: str, unit: str, blocks: int, tmp_path: Path) -> None:
    output = tmp_path / "out"
    size = ("--models", model, "--length", "8", "--steps", "2", "--rounds", "1")
    result = python("benchmarks/training.py", *size, "-o", output, cwd=ROOT, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["model"], row["way"], row["dtype"], row["backend"]) for row in rows] == [
        (model, way, dtype, backend)
        for way in ("DDP", "FSDP2")
        for dtype in ("float32", "bfloat16")
        for backend in CONTENDERS
    ]
    for row in rows:
        units = 2 * 8 if unit == "tokens" else 2  # of a rank
        assert row["unit"] == unit
        assert row["rate"] == pytest.approx(row["world_size"] * units / row["step"])
        assert row["communication"] < row["step"] < 60
        if row["way"] == "FSDP2":
            assert row["communication"] > 0
            gathers = 2 * blocks + 1  # the model's other parameters stay until backward
            assert row["timed"] == gathers + blocks + 1
        else:
            assert row["timed"] == 0
        assert row["last_loss"] < row["first_loss"], "it learns"
        assert row["difference"] == 0, "two addends have one sum"
        assert (row["jobs"], row["same_bits"], row["world_size"]) == (1, 1, 2)
    line = rf"^\| {model} \| FSDP2 \| bfloat16 \| gloo \|.* {unit} \|.*% \|.* 1 of 1 \|$"
    assert re.search(line, result.stdout, re.M)
    text = output.with_suffix(".md").read_text()
    assert "In each of 2 timed steps, a rank has 2 texts of 8 tokens, or 2 images." in text


def test_training_refuses_what_it_does_not_know() -> None:
    for option, value, complaint in (
        ("--models", "gpt3", "--models: gpt3 is none of gpt2-2m, gpt2-124m, vit-3m, vit-22m"),
        ("--ways", "DDP,FSDP", "--ways: FSDP is none of DDP, FSDP2"),
        ("--dtypes", "float16", "--dtypes: float16 is none of float32, bfloat16"),
        ("--nproc", "1", "--nproc: must be an integer from 2, got '1'"),
    ):
        result = python("benchmarks/training.py", option, value, cwd=ROOT)
        assert result.returncode == 2 and complaint in result.stderr


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("name", MODELS)
def test_models_have_as_many_parameters_as_they_say(name: str) -> None:
    millions = num_parameters(name) / 1e6
    assert name.endswith(f"-{millions:.0f}m")


@pytest.mark.parametrize("name", ["gpt2-2m", "vit-3m"])
def test_each_rank_and_step_has_data_of_its_own(name: str) -> None:
    options = Namespace(batch=4, length=8)
    first, again, other_rank, other_step = (
        make_batch(name, options, rank, step, "bfloat16")
        for rank, step in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    for key, tensor in first.items():
        assert torch.equal(tensor, again[key]) and len(tensor) == 4
        assert not torch.equal(tensor, other_rank[key])
        assert not torch.equal(tensor, other_step[key])
        assert tensor.dtype in (torch.int64, torch.bfloat16)


def sample(*losses: float, digest: str = "a") -> training.Sample:
    return training.Sample(1.0, 0.5, 3.0, [[loss, loss] for loss in losses], [digest, digest])


def test_jobs_on_ring_must_end_with_the_same_bits() -> None:
    good = sample(3.0, 2.0)
    found = {backend: [good, good] for backend in CONTENDERS}
    training.check(CASE, found)
    other_loss, other_parameters = sample(3.0, 2.0 + 2**-51), sample(3.0, 2.0, digest="b")
    for other in (other_loss, other_parameters):
        training.check(CASE, {**found, "gloo": [good, other]})
        for backend in CONTENDERS[:2]:
            with pytest.raises(WrongResultsError, match="gpt2-2m, DDP, float32: two jobs on ring"):
                training.check(CASE, {**found, backend: [good, other]})


def test_losses_must_be_those_of_gloo_up_to_rounding() -> None:
    good = sample(3.0, 2.0)
    found = {backend: [good] for backend in CONTENDERS}
    training.check(CASE, {**found, "gloo": [sample(3.0, 2.0 + 2**-22)]})
    for wrong in (sample(3.0, 2.0 + 2**-12), sample(3.1, 2.0), sample(float("nan"), 2.0)):
        with pytest.raises(WrongResultsError, match=r"a loss on ring differs from gloo's by"):
            training.check(CASE, {**found, "gloo": [wrong]})
    in_bfloat16 = (*CASE[:2], "bfloat16")
    training.check(in_bfloat16, {**found, "gloo": [sample(3.0, 2.0 + 2**-6)]})


def test_rows_are_medians_of_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "num_parameters", lambda name: 5)
    samples = [dataclasses.replace(sample(3.0, 2.0), step=step) for step in (4.0, 1.0, 2.0)]
    samples[2] = dataclasses.replace(samples[2], digests=["b", "b"])
    options = Namespace(nproc=2, busy=0, batch=4, length=8)
    (row,) = training.rows_of(options, CASE, {"gloo": samples})
    assert (row.step, row.rate, row.unit) == (2.0, 32.0, "tokens")
    assert row.share == 0.25 and (row.jobs, row.same_bits) == (3, 2)
    idle = dataclasses.replace(row, communication=-0.1)
    assert "| 2000 ms | 32.0 tokens | 0.00 µs | 0% | 3.000 to 2.000 |" in training.table([idle])


def test_calls_are_timed_while_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group: (tensor, group))
    timer, plain = CallTimer(), torch.distributed.all_reduce
    with timer.timing("all_reduce", "what torch does not have"):
        assert torch.distributed.all_reduce(1, group=2) == (1, 2)
    assert timer.calls == 1 and timer.seconds > 0
    assert torch.distributed.all_reduce is plain
