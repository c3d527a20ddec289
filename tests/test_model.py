"""The benchmark of a divided language model, small, and its check of the tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import model
import pytest
import torch
from programs import ROOT, python

SMALL = ("--parameters", "3", "--layers", "2", "--hidden", "256", "--prompt", "8", "--tokens", "8")


@pytest.fixture
def transformers() -> None:
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"no {name}: pip install -e '.[models]'")


@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
def test_model(tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = ("--rounds", "1", "--batches", "1,2", "--busy", "1", "-o", output)
    result = python("benchmarks/model.py", *SMALL, *options, cwd=ROOT, timeout=250)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["dtype"], row["batch"], row["backend"]) for row in rows] == [
        (dtype, batch, backend)
        for dtype in ("float32", "bfloat16")
        for batch in (1, 2)
        for backend in ("one process", "ring", "gloo")
    ]
    for row in rows:
        is_divided = row["backend"] != "one process"
        assert row["world_size"] == (2 if is_divided else 1) and row["busy"] == 1
        assert row["all_reduces"] == (4 if is_divided else 0), "two of each layer"
        assert 0 <= row["all_reduce"] < row["token"] < 60
        assert row["decode"] == pytest.approx(row["batch"] / row["token"])
        assert row["tokens"] == 8 * row["batch"]
        if row["dtype"] == "float32":
            assert row["likeliest"] == row["tokens"]
    assert re.search(r"^\| float32 \| 2 \| ring \|.* 4 \|.*\| 16 of 16 \|$", result.stdout, re.M)
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    text = output.with_suffix(".md").read_text()
    assert "2 layers of width 256, among 2 ranks with a thread each, beside 1 busy process." in text


def test_model_refuses_pictures_without_matplotlib_before_it_measures(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError(name=__name__)\n")
    options = ("-o", tmp_path / "out")
    result = python("benchmarks/model.py", *options, cwd=ROOT, PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (2, "")
    assert "a picture needs matplotlib, which is not installed" in result.stderr
    assert not list(tmp_path.glob("out*"))


def test_model_refuses_what_it_cannot_divide() -> None:
    for option, value, complaint in (
        ("--nproc", "3", "--nproc must divide 4, the model's key heads"),
        ("--hidden", "100", "--hidden must be a multiple of 256"),
        ("--dtypes", "float16", "float16 is none of float32, bfloat16"),
        ("--tokens", "2", "--tokens: must be an integer from 3, got '2'"),
    ):
        result = python("benchmarks/model.py", option, value, cwd=ROOT)
        assert result.returncode == 2 and complaint in result.stderr


@pytest.mark.parametrize("millions", [10, 28, 100, 500])
def test_shapes_have_about_as_many_parameters(millions: int) -> None:
    hidden, layers = model.shape_of(millions * 10**6, None, None)
    assert hidden / layers == pytest.approx(model.WIDTH_PER_LAYER, rel=0.7)
    assert model.num_parameters(hidden, layers) == pytest.approx(millions * 1e6, rel=0.15)
    assert model.shape_of(millions * 10**6, 512, 3) == (512, 3)
    assert model.shape_of(millions * 10**6, None, layers) == (hidden, layers)


@pytest.mark.usefixtures("transformers")
def test_parameters_are_counted() -> None:
    made = model.make_model(256, 3)
    assert sum(each.numel() for each in made.parameters()) == model.num_parameters(256, 3)


class Logits:
    """A model to which the token after the last is the likeliest, then the one after that."""

    def __init__(self, second: float, dtype: torch.dtype) -> None:
        self.second, self.dtype = second, dtype

    def __call__(self, texts: torch.Tensor) -> Logits:
        self.logits = torch.zeros(*texts.shape, 8)
        self.logits.scatter_(2, (texts.unsqueeze(2) + 2) % 8, self.second)
        self.logits.scatter_(2, (texts.unsqueeze(2) + 1) % 8, 1.0)
        self.logits = self.logits.to(self.dtype)
        return self


def test_other_tokens_than_those_of_one_process_are_an_error() -> None:
    texts = torch.tensor([[3, 4, 5, 6], [5, 6, 7, 0]])
    everything = Logits(0.5, torch.float32)
    assert model.likeliest(everything, texts, 2).all()
    texts[1, 3] = 1
    with pytest.raises(model.WrongTokensError, match="token 2 of text 1 is 1; one process would"):
        model.likeliest(everything, texts, 2)
    as_likely = Logits(1 - 2**-7, torch.bfloat16)
    assert model.likeliest(as_likely, texts, 2).tolist() == [[True, True], [True, False]]
    with pytest.raises(model.WrongTokensError):
        model.likeliest(Logits(1 - 2**-7, torch.float32), texts, 2)
