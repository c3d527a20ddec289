"""What the pages link to outside of docs/pages becomes part of the site, wherever it lies.

Markdown becomes a page as it is, source code a page that shows it, anything else is copied. So the
README is the site's first page and `examples/README.md` its tutorial, and the links in them lead on
both in the repository and on the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "pages"
# Where on the site a file is that has a place of its own; the others are under repository/.
PLACES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "tutorial.md",
    "examples/cuda/README.md": "cuda_examples.md",
}
LANGUAGES = {".cpp": "cpp", ".cu": "cpp", ".h": "cpp", ".py": "python", ".sh": "sh"}
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")

_origins: dict[str, Path] = {}  # of each page that lies outside of docs/pages


def place(path: Path) -> str:
    """Where on the site a file of the repository is."""
    if path.is_relative_to(PAGES):
        return path.relative_to(PAGES).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if name in PLACES:
        return PLACES[name]
    return f"repository/{name}" + (".md" if path.suffix in LANGUAGES else "")


def linked(markdown: str, folder: Path) -> list[Path]:
    """The files that a Markdown text in that folder links to."""
    paths = (Path(os.path.normpath(folder / match[1])) for match in LINK.finditer(markdown))
    return [path for path in paths if path.is_file() and path.is_relative_to(ROOT)]


def shown(path: Path) -> str:
    """The page that shows a file of source code."""
    name = path.relative_to(ROOT).as_posix()
    code = f"~~~~{{.{LANGUAGES[path.suffix]}}}\n{path.read_text()}~~~~\n"
    return f"---\nhide: [toc]\nsearch:\n  exclude: true\n---\n# `{name}`\n\n{code}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds all files that can be reached from the pages by links."""
    _origins.clear()
    waiting = [*PAGES.rglob("*.md"), *(ROOT / name for name in PLACES)]
    seen = set(waiting)
    for path in waiting:
        if not path.is_relative_to(PAGES):
            uri = place(path)
            if path.suffix in LANGUAGES:
                files.append(File.generated(config, uri, content=shown(path)))
                continue
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            _origins[uri] = path
        if path.suffix == ".md":
            found = [other for other in linked(path.read_text(), path.parent) if other not in seen]
            seen.update(found)
            waiting.extend(dict.fromkeys(found))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links between files of the repository into links between their places on the site."""
    uri = page.file.src_uri
    origin = _origins.get(uri, PAGES / uri)
    if uri.startswith("repository/") and uri not in _origins:
        return markdown  # source code

    def replaced(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(origin.parent / match[1]))
        if not target.is_file():
            return match[0]
        return f"]({os.path.relpath(place(target), Path(uri).parent)}{match[2] or ''})"

    return LINK.sub(replaced, markdown)
