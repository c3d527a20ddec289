"""What `python -m ringcomm` says of itself and of its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ringcomm
from ringcomm.cli import COMMANDS, main

PROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text()


def said(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_version(capsys) -> None:
    (version,) = re.findall(r'^version = "(.*)"$', PROJECT, re.MULTILINE)
    assert ringcomm.__version__ == version
    assert said(capsys, "--version") == f"ringcomm {version}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(capsys, command: str) -> None:
    assert f"  {command:10}{COMMANDS[command]}" in said(capsys, "--help")
    usage, description, *_ = said(capsys, command, "--help").split("\n\n")
    assert usage.startswith(f"usage: python -m ringcomm {command} ")
    assert len(description) > 20 and not description.startswith(("options:", "positional"))
