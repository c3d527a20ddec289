"""docs/pages/howto/own_algorithm.md: what it shows is what one gets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from programs import python

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "pages" / "howto" / "own_algorithm.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_all_reduce.py").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return [body for written_in, body in found if written_in == language]


def run(*arguments: str) -> str:
    """Python with these arguments; programs of -c find the example, commands name its file."""
    path = str(ROOT / "examples") if arguments[0] == "-c" else ""
    result = python(*arguments, cwd=ROOT, PYTHONPATH=path, COLUMNS="120")
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_code_is_the_examples() -> None:
    written = blocks("python")[0]
    imports, function = written.split("\n\n\n", 1)
    assert imports in EXAMPLE and function in EXAMPLE
    assert len(function.splitlines()) <= 30
    for line in blocks("python")[2].splitlines():
        assert line in EXAMPLE


def test_what_is_proved_and_printed() -> None:
    printed = run(
        "-c",
        "import ringcomm, own_all_reduce as own\n"
        "from ringcomm.plan import Plan, PlanError, Plans\n"
        + blocks("python")[1]
        + "print(ringcomm.plan.all_reduce('line', world_size=4).program(1))\n"
        "short = [Plan(1, own.line(rank, 5).steps[:3]) for rank in range(5)]\n"
        "try: Plans('all_reduce', short).verify()\n"
        "except PlanError as error: print('PlanError:', error)\n",
    )
    for shown in blocks("")[1:3]:
        assert shown in printed, printed


def commands() -> dict[str, list[str]]:
    all_words = [shlex.split(block.replace("\\\n", " ")) for block in blocks("sh")]
    assert all(words[:3] == ["python", "-m", "ringcomm"] for words in all_words)
    return {words[3]: words[1:] for words in all_words}


def test_the_simulation() -> None:
    printed = run(*commands()["simulate"])
    for row in blocks("")[3].splitlines():
        assert row.split() in [line.split() for line in printed.splitlines()], printed


def test_slices_follow_each_other() -> None:
    printed = run(*commands()["simulate"], "--slice", "256K").split()
    for time in re.findall(r"([\d.]+) ms", GUIDE.split("with `--slice 256K`")[1])[1:3]:
        assert time in printed


def test_the_page(tmp_path: Path) -> None:
    words = commands()["explain"]
    output = tmp_path / words[-1]
    run(*words[:-1], str(output))
    assert output.stat().st_size > 1000


@pytest.mark.slow
def test_the_timing() -> None:
    printed = run(*commands()["bench"], "-e", "4K", "-n", "3")
    assert "dist (ring)/line" in printed and "# wrong elements: 0 OK" in printed
