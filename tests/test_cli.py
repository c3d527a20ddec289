"""What `python -m ringcomm`, or `ringcomm`, says of itself and of its commands."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from own_modules import own

import ringcomm
from ringcomm import arguments as of_commands
from ringcomm import cost, options, plan
from ringcomm.arguments import output_file
from ringcomm.cli import COMMANDS, main, names
from ringcomm.plan.plans import COLLECTIVES

ROOT = Path(__file__).parents[1]
SETUP = (ROOT / "setup.py").read_text()
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def said(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_version(capsys) -> None:
    (version,) = re.findall(r'^VERSION = "(.*)"$', SETUP, re.MULTILINE)
    assert ringcomm.__version__ == version
    assert said(capsys, "--version") == f"ringcomm {version}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(capsys, command: str) -> None:
    assert f"  {command:10}{COMMANDS[command]}" in said(capsys, "--help")
    usage, description, *_ = said(capsys, command, "--help").split("\n\n")
    assert usage.startswith(f"usage: python -m ringcomm {command} ")
    assert len(description) > 20 and not description.startswith(("options:", "positional"))


# What an installer writes for the entry point, in a file of this name.
SCRIPT = """
import sys
from {module} import {function}
sys.argv[0] = "/opt/bin/ringcomm"
sys.exit({function}())
"""


@pytest.fixture(scope="module")
def console_script() -> list[str]:
    """Runs the command that setup.py names, whatever is installed here."""
    (entry,) = re.findall(r'"console_scripts": \["ringcomm = ([\w.:]+)"\]', SETUP)
    module, _, function = entry.partition(":")
    (packed,) = re.findall(r"^py-modules = (.*)$", PYPROJECT, re.MULTILINE)
    assert f'"{module}"' in packed
    return ["-c", SCRIPT.format(module=module, function=function)]


def test_the_console_command(console_script: list[str], tmp_path: Path) -> None:
    """It is `python -m ringcomm` by another name, in whatever folder, and needs torch as late."""
    for arguments, code in (["--help"], 0), (["bench", "--help"], 0), (["cost", "--tp", "0"], 2):
        by_module = ran("-m", "ringcomm", *arguments, cwd=ROOT)
        by_name = ran(*console_script, *arguments, cwd=tmp_path)
        assert by_module.returncode == by_name.returncode == code
        for one, other in (by_module.stdout, by_name.stdout), (by_module.stderr, by_name.stderr):
            assert words(one.replace("python -m ringcomm", "ringcomm")) == words(other)
    assert "torch" not in imported("cost", "--tp", "0", code=2, start=console_script)


def test_the_console_command_starts_ranks(console_script: list[str], tmp_path: Path) -> None:
    small = ("-b", "1K", "-e", "1K", "-n", "1", "--backends", "ring")
    result = ran(*console_script, "bench", *small, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "") and " OK" in result.stdout


def ran(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)


def words(text: str) -> list[str]:
    """Without the line breaks, which depend on the length of the program's name."""
    return text.split()


def imported(*arguments: str, code: int, start: Sequence[str] = ("-m", "ringcomm")) -> set[str]:
    """The packages that a command imports; it ends with `code`."""
    command = [sys.executable, "-X", "importtime", *start, *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == code, result.stderr
    return set(re.findall(r"^import time: .*\| +(\w+)$", result.stderr, re.M))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_does_not_wait_for_torch(command: str) -> None:
    packages = imported(command, "--help", code=0)
    assert "ringcomm" in packages
    assert not packages & {"torch", "numpy", "matplotlib"}


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_fits_80_columns(capsys, monkeypatch, command: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = said(capsys, *command, "--help").splitlines()
    assert not [line for line in lines if len(line) > 80]


WRONG = [[], ["dance"], ["demo", "--nproc", "0"], ["cost", "--gpus"], ["simulate", "--gpus"]]


@pytest.mark.parametrize("wrong", WRONG)
def test_usage_errors_do_not_wait_for_torch(wrong: list[str]) -> None:
    assert "torch" not in imported(*wrong, code=2)


def test_names_in_help_are_those_of_the_library() -> None:
    assert tuple(COLLECTIVES) == names.COLLECTIVES
    assert options.REPRODUCIBLE == names.REPRODUCIBLE
    assert tuple(cost.MODELS) == names.MODELS
    assert tuple(cost.MACHINES) == names.MACHINES
    assert {
        name: f"{link.latency * 1e6:g} us, {link.bandwidth / 1e9:g} GB/s"
        for name, link in plan.LINKS.items()
    } == names.LINKS


# Of each command, an option for a file that it writes.
WRITING = [
    "bench --csv",
    "bench -J",
    "bench --plot",
    "cost --plot",
    "explain all_reduce -o",
    "simulate all_reduce --plot",
    "trace -o",
    "tune -o",
]


@pytest.mark.parametrize("command", WRITING)
def test_files_that_cannot_be_written_are_refused_at_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suffix = ".json" if command.startswith("trace") else ".svg"
    folder, blocked = tmp_path / f"folder{suffix}", tmp_path / "file"
    folder.mkdir()
    blocked.touch()
    wanted = {
        str(tmp_path / f"none/out{suffix}"): f"there is no folder {tmp_path / 'none'}",
        str(folder): "must be a file, and",
        str(blocked / f"out{suffix}"): "cannot be written: Not a directory",
        str(tmp_path / ("x" * 300 + suffix)): "cannot be written: File name too long",
    }
    for file, text in wanted.items():
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), file])
        assert ended.value.code == 2
        assert text in capsys.readouterr().err


def test_a_file_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only = own(os, access=lambda path, mode: False)  # root may write everywhere
    monkeypatch.setattr(of_commands, "os", read_only)
    with pytest.raises(argparse.ArgumentTypeError, match=f"{tmp_path} is read-only here"):
        output_file(str(tmp_path / "out.csv"))
