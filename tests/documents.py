"""The documentation as tests read it: the README, CONTRIBUTING.md and the pages of the site."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pages"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted(FOLDER.rglob("*.md")),
]


def page(name: str) -> str:
    """The text of a page, by its path in docs/pages."""
    return (FOLDER / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    """The code blocks that are marked with this language, or, with "", not marked."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [body for written_in, body in found if written_in == language]


def commands(text: str) -> list[str]:
    """The lines of the shell blocks, without comments; continued ones are joined."""
    joined = "".join(blocks(text, "sh")).replace("\\\n", " ")
    lines = (re.sub(r"\s+#\s.*|^#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]
