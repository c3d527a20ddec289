"""What CONTRIBUTING.md and the table of folders name is there; no folder is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import test_core_cpp
from documents import page

from ringcomm.cli import COMMANDS
from ringcomm.plan.algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
HOW_IT_WORKS = page("design/how_it_works.md")
TABLE = HOW_IT_WORKS[HOW_IT_WORKS.index("| where | what |") : HOW_IT_WORKS.index("Arrows go")]
ALGORITHM_PAGE = page("design/algorithms.md")
PATH = re.compile(r"(?<![\w/-])(?:\.ci|benchmarks|csrc|examples|ringcomm|tests)/[\w./]*")


def paths(text: str) -> list[str]:
    return sorted({path.rstrip(".") for path in PATH.findall(text)})


@pytest.mark.parametrize("path", paths(CONTRIBUTING + TABLE))
def test_paths_are_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_paths_were_found() -> None:
    assert len(paths(CONTRIBUTING)) > 30
    assert len(paths(TABLE)) > 15


def test_the_table_has_all_folders() -> None:
    folders = [path for path in (ROOT / "csrc").iterdir() if path.is_dir()]
    folders += [path.parent for path in (ROOT / "ringcomm").glob("*/__init__.py")]
    missing = [path.name for path in folders if f"`{path.relative_to(ROOT)}/`" not in TABLE]
    assert not missing


def test_the_table_of_algorithms_has_all() -> None:
    table = ALGORITHM_PAGE[ALGORITHM_PAGE.index("| algorithm | of |") :].split("\n\n")[0]
    listed = set(re.findall(r"^\| \[`(\w+)`\]", table, re.M))
    names = {name for names in ALGORITHMS.values() for name in names}
    shown = names - {"dissemination"}  # which is for barriers, whose data nobody sends
    assert listed == shown
    drawn = set(re.findall(r"^<!-- plan: \w+ (\w+) ", ALGORITHM_PAGE, re.M))
    assert drawn == shown - {"ring"}  # which has a page of its own


def test_the_tests_of_the_core_are_there() -> None:
    named = re.findall(r"test_core\[(\w+)-(\w+)\]", CONTRIBUTING)
    assert len(named) == 2
    cases = {(sanitizer, test.stem) for sanitizer, test in test_core_cpp.CASES}
    assert set(named) <= cases


def test_commands_are_modules() -> None:
    assert all((ROOT / "ringcomm" / "cli" / f"{command}.py").exists() for command in COMMANDS)
