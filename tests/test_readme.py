"""What the README shows is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import ringcomm
from ringcomm.cli import main
from ringcomm.launch import run_ranks

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
PYTHON, SHELL, PLAIN = (
    re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)
    for language in ("python", "sh", "")
)


@pytest.mark.parametrize("index", range(len(PYTHON)))
def test_programs(index: int, tmp_path: Path) -> None:
    """Each runs on two ranks; the last stands on the imports and the tensor of those before it."""
    text = PYTHON[index]
    if "import torch\n" not in text:
        text = "import torch, ringcomm\nimport torch.distributed as dist\n" + text
        text = text.replace('("gloo")\n', '("gloo")\ntensor = torch.ones(2)\n')
    program = tmp_path / "program.py"
    program.write_text(text)
    run_ranks([str(program)], 2, timeout=120)


def test_programs_were_found() -> None:
    assert len(PYTHON) == 4


def test_plan_table() -> None:
    printed = str(ringcomm.plan.all_reduce("ring", world_size=4)).splitlines()
    (shown,) = [block for block in PLAIN if block.startswith("all_reduce (ring)")]
    lines = [line for line in shown.splitlines() if line.strip(" .")]
    assert len(lines) == 12
    for line in lines:
        assert line in printed


def test_exported_names() -> None:
    section = README[README.index("There are `all_reduce`") : README.index("A synchronous")]
    names = set(re.findall(r"`(\w+)`", section))
    rest = {"ReduceOp", "Work", "get_rank", "get_world_size", "init", "plan"}
    assert names | rest == set(ringcomm.__all__)


@pytest.mark.parametrize("command", ["simulate", "cost"])
def test_output_of_commands(command: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (shell,) = [block for block in SHELL if block.startswith(f"python -m ringcomm {command} ")]
    assert main(shlex.split(shell.replace("\\\n", ""))[3:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(["```", *printed, "```"]) in README
