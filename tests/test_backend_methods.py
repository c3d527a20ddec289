"""The page of torch's methods that the backend implements, beside torch's headers and ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from documents import ROOT

HEADERS = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d"
NEWEST = (2, 15)  # whose methods the page has, all of them
ANSWERS = {"yes", "torch's", "no"}


def virtual_methods(header: str) -> set[str]:
    text = re.sub(r"//.*", "", (HEADERS / header).read_text())
    return set(re.findall(r"\bvirtual\b[^;{]*?(\w+)\s*\(", text))


def table(title: str) -> dict[str, tuple[str, str]]:
    """Of the section with this title: what the page says of each method, and why."""
    section = (ROOT / "docs/pages/reference/backend.md").read_text().split(f"\n## {title}\n")[1]
    rows = re.findall(r"^\| (`.*`) \| ([^|]*) \|(.*)\|$", section.split("\n## ")[0], re.M)
    return {
        name: (answer, why.strip())
        for names, answer, why in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def declared() -> str:
    """What our own headers, and the sources with works of messages, declare."""
    return "\n".join(path.read_text() for path in (ROOT / "csrc" / "torch").glob("*.h"))


@pytest.mark.parametrize(("title", "header"), [("Backend", "Backend.hpp"), ("Work", "Work.hpp")])
def test_the_page_has_every_method(title: str, header: str) -> None:
    methods, documented = virtual_methods(header), table(title)
    assert methods - set(documented) == set()
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version == NEWEST:
        assert set(documented) - methods == set()


@pytest.mark.parametrize("title", ["Backend", "Work"])
def test_the_page_says_what_is_implemented(title: str) -> None:
    ours = declared()
    for name, (answer, why) in table(title).items():
        assert answer in ANSWERS, name
        assert answer != "no" or why, f"{name} is refused, and the page does not say why"
        is_declared = bool(re.search(rf"\b{name}\(", ours))
        if title == "Backend" and answer != "no":
            assert is_declared == (answer == "yes"), name
