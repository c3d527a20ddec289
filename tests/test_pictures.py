"""The committed pictures are what docs/draw.py draws."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest
from documents import FOLDER, PAGES, ROOT

DRAW: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "draw.py"))
PICTURES = DRAW["pictures"]()


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_as_drawn(path) -> None:
    """If not: `python docs/draw.py`."""
    assert path.read_text() == PICTURES[path], "run: python docs/draw.py"


def test_each_picture_is_on_a_page() -> None:
    text = "\n".join(path.read_text() for path in PAGES)
    shown = set(re.findall(r"assets/(\w+\.svg)\)", text))
    assert (
        shown
        == {path.name for path in PICTURES}
        == {path.name for path in (FOLDER / "assets").glob("*.svg")}
    )


def test_the_architecture_has_all_arrows() -> None:
    """Whatever a folder includes can be reached by the picture's arrows."""
    below = DRAW["folders"]()
    drawn: dict[str, set[str]] = {name: set() for name in below}
    for name, other in DRAW["direct"](below):
        drawn[name].add(other)
    assert len(below) > 5
    assert {name: DRAW["reached"](name, drawn) for name in drawn} == {
        name: DRAW["reached"](name, below) for name in below
    }


def test_folders_that_include_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="include each other: a, b"):
        DRAW["floors"]({"a": {"b"}, "b": {"a"}, "c": set()})
