"""What CONTRIBUTING.md and the pages name is there; no folder is left out of the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import test_core_cpp
from documents import PAGES, page

from ringcomm.cli import COMMANDS
from ringcomm.plan.algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
HOW_IT_WORKS = page("design/how_it_works.md")
TABLE = HOW_IT_WORKS[
    HOW_IT_WORKS.index("| where | what |") : HOW_IT_WORKS.index("[CONTRIBUTING.md]")
]
ALGORITHM_PAGE = page("design/algorithms.md")
PATH = re.compile(r"(?<![\w/-])(?:\.ci|benchmarks|csrc|examples|ringcomm|tests)/[\w./]*")


def paths(text: str) -> list[str]:
    """Those in a text, without patterns and what is yet to be named."""
    named = {match[0].rstrip(".") for match in PATH.finditer(text) if text[match.end()] != "*"}
    return sorted(path for path in named if "NAME" not in path)


@pytest.mark.parametrize("path", paths("\n".join(page.read_text() for page in PAGES)))
def test_paths_are_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_paths_were_found() -> None:
    assert len(paths(CONTRIBUTING)) > 30
    assert len(paths(TABLE)) > 15


def answers() -> list[tuple[str, str, str]]:
    """The rows of the table of questions: question, function, file."""
    table = CONTRIBUTING[CONTRIBUTING.index("| question |") :].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+\?) \| `(\w+)`[^|]* \| `([^`]+)` \|$", table, re.M)
    assert len(rows) == len(table.splitlines()) - 2 == 5
    return rows


@pytest.mark.parametrize(("question", "function", "file"), answers())
def test_answers(question: str, function: str, file: str) -> None:
    """The file defines the function: its name begins a line, after the type and the class."""
    defined = rf"^[\w:][\w:<>&* ]*\b{function}\([^;]*?\)[\w ]*\{{"
    assert re.search(defined, (ROOT / file).read_text(), re.M)


def test_the_table_has_all_folders() -> None:
    folders = [path for path in (ROOT / "csrc").iterdir() if path.is_dir()]
    folders += [path.parent for path in (ROOT / "ringcomm").glob("*/__init__.py")]
    missing = [path.name for path in folders if f"`{path.relative_to(ROOT)}/`" not in TABLE]
    assert not missing


def test_the_table_of_algorithms_has_all() -> None:
    table = ALGORITHM_PAGE[ALGORITHM_PAGE.index("| algorithm | of |") :].split("\n\n")[0]
    listed = set(re.findall(r"^\| \[`(\w+)`\]", table, re.M))
    names = {name for names in ALGORITHMS.values() for name in names}
    shown = names - {"dissemination"}  # which is for barriers: they send no data
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


def test_a_dtype_needs_the_files_of_its_rows() -> None:
    rows = CONTRIBUTING[CONTRIBUTING.index("| dtype |") : CONTRIBUTING.index("| engine between")]
    types = (ROOT / "csrc/reduce/types.h").read_text()
    enum = types[types.index("enum class DType") :].split("};")[0]
    dtypes = re.findall(r"^  (k\w+),$", enum, re.M)
    naming_all = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "csrc").glob("*/**/*.*")
        if all(re.search(rf"(?:DType::|^  ){dtype}\b", path.read_text(), re.M) for dtype in dtypes)
    }
    assert len(dtypes) > 10
    assert naming_all == {path for path in paths(rows) if path.startswith("csrc/")}
    assert len(naming_all) == 3
