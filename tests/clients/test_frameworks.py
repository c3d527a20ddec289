"""Programs of docs/pages/howto/frameworks.md train on ring what they train on gloo."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from documents import blocks, page

PROGRAMS = blocks(page("howto/frameworks.md"), "python")
FRAMEWORKS = (
    "accelerate",
    "deepspeed",
    "fairscale",
    "lightning",
    "torchmetrics",
    "transformers",
)
SAVE = """
import os
if "network" in globals():
    found = [parameter.detach() for parameter in network.parameters()]
    torch.save(found, "rank" + os.environ["RANK"])
"""


# torch's gloo may drop a tensor on a thread of its own while Python ends, which aborts the process.
LEAVE = "os._exit(0)\n"


def framework_of(program: str) -> str:
    """The package that a program is about."""
    imported = re.findall(r"^(?:import|from) (\w+)", program, re.M)
    (name,) = {name for name in imported if name in FRAMEWORKS}
    return name


def parameters(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Runs it on two ranks; returns the parameters, which are the same on both."""
    folder.mkdir()
    (folder / "program.py").write_text(program)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([sys.executable, "-m", *torchrun, "program.py"], check=True, timeout=200)
    saved = [torch.load(path) for path in sorted(folder.glob("rank*"))]
    assert len(saved) in (0, 2)
    for one, other in zip(*saved, strict=True) if saved else ():
        assert torch.equal(one, other)
    return saved[0] if saved else []


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(PROGRAMS)))
def test_trains_what_gloo_trains(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[index]
    name = framework_of(program)
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install {name}")
    on_ring = parameters(program + SAVE, tmp_path / "ring", monkeypatch)
    program = program.replace('"ring"', '"gloo"')
    on_gloo = parameters(program + SAVE + LEAVE, tmp_path / "gloo", monkeypatch)
    for ours, theirs in zip(on_ring, on_gloo, strict=True):
        assert torch.equal(ours, theirs)


def test_every_framework_has_a_program() -> None:
    assert {framework_of(program) for program in PROGRAMS} == set(FRAMEWORKS)
