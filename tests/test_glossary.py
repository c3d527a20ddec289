"""Names are the field's words, CONTRIBUTING.md's glossary holds, and comments are plain."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What these things were called before; a name is one thing's.
OLD = {
    *("RollCall", "Attendee", "Seating", "Invitation", "Sentinel", "RankWord", "FailureWord"),
    *("Relay", "MailFerry", "Crossing", "Notice", "Notices", "Greeting", "Tells", "Told", "Idle"),
    *("Blocked", "Bell", "Listening", "Way", "Between", "Shelf", "Holding", "Rotation", "Maker"),
    *("Trouble", "Departure", "OrderWriter", "MessageNow", "roll_call", "left_behind"),
    *("hear_of", "excuse", "tell_reach", "gone_too", "at_odds", "come_to_nothing", "gives_up"),
}
# The same for names in Python.
OLD_IN_PYTHON = OLD | {"meet", "meeting", "greeting", "board", "whoever", "hear", "told"}
OLD_IN_PYTHON |= {"tell", "Tell", "tell_all", "tell_nobody", "tell_peer", "silence", "shelf"}
# Words that comments and docstrings of Python do not use. Ranks and threads are "it", not "who".
NOT_SAID = re.compile(
    r"\b(told|tells?|hears?|heard|nobody|whoever|whom|who|anew|in vain|for ever)\b"
    r"|\bcomes? to nothing\b"
    r"|(?:^|[.:] )Of [a-z0-9A-Z]"
)
# getrusage's parameter.
NAMES_OF_OTHERS = re.compile(r"`who`")
# Strings and comments, which are no names.
NO_NAMES = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


def names(folder: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in (".h", ".cpp", ".cu"):
            code = NO_NAMES.sub("", path.read_text())
            found |= dict.fromkeys(re.findall(r"[A-Za-z_]\w*", code), path)
            found[path.stem] = path
    return found


def test_old_names_are_gone() -> None:
    found = names("csrc")
    assert len(found) > 3000
    old = {name: str(path.relative_to(ROOT)) for name, path in found.items() if name in OLD}
    assert not old
    assert not [name for name in found if name.endswith("_now") and name != "rough_now"]


def test_the_glossary_names_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Words") :].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \|", table, re.M)[1:]
    assert len(rows) > 25
    found = names("csrc")
    terms = [term for row in rows for term in re.findall(r"\b[A-Z]\w+", row)]
    assert len(terms) > 25
    assert not [term for term in terms if term not in found]


def python_files() -> list[Path]:
    folders = ("ringcomm", "benchmarks", "examples", "packaging")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def defined(tree: ast.AST) -> Iterator[str]:
    """The names that a module defines: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_old_names_are_gone_from_python() -> None:
    found: dict[str, str] = {}
    for path in python_files():
        names_of_it = {path.stem, *defined(ast.parse(path.read_text()))}
        plain = {name.strip("_"): name for name in names_of_it}
        found |= {name: str(path) for name in plain if name in OLD_IN_PYTHON}
    assert not found


def remarks(source: str) -> Iterator[tuple[int, str]]:
    """Each paragraph of the docstrings and each block of comments, with its line."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for text in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                yield getattr(node, "lineno", 1), " ".join(text.split())
    last, block = -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            is_next = token.start[0] == last + 1 and not token.line[: token.start[1]].strip()
            if not is_next and block:
                yield last, block
                block = ""
            block, last = f"{block} {text}".strip(), token.start[0]
    yield last, block


def test_comments_and_docstrings_are_plain() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": match[0]
        for path in python_files()
        for line, text in remarks(path.read_text())
        if (match := NOT_SAID.search(NAMES_OF_OTHERS.sub("", text)))
    }
    assert not found


def comments_of(source: str) -> Iterator[str]:
    """Each comment of a C++ source; lines of comments that follow each other are one."""
    block: list[str] = []
    for line in source.splitlines():
        whole = re.fullmatch(r"\s*// ?(.*)", line)
        if whole:
            block.append(whole[1].strip())
            continue
        if block:
            yield " ".join(block)
            block = []
        if behind := re.search(r"  // ?(.*)", line):
            yield behind[1]


# Names of fields and of keys in stores.
QUOTED = re.compile(r"`\w+`|\btold/")
OF_CSRC = re.compile(
    r"\b(?:core|plan|reduce|shm|hosts|setup|torch|gpu/\w+)/[a-z_0-9]+\.(?:h|cpp|cu)\b"
)


def test_comments_of_csrc_are_plain_and_name_files_that_are_there() -> None:
    not_plain, not_there = set(), set()
    for path in [*(ROOT / "csrc").rglob("*.*"), *(ROOT / "tests/cpp").glob("*.*")]:
        if path.suffix not in (".h", ".cpp", ".cu"):
            continue
        for comment in comments_of(path.read_text()):
            if match := NOT_SAID.search(QUOTED.sub("", comment)):
                not_plain.add((str(path.relative_to(ROOT)), match[0]))
            for file in OF_CSRC.findall(comment):
                if not (ROOT / "csrc" / file).exists():
                    not_there.add((str(path.relative_to(ROOT)), file))
    assert not not_plain and not not_there
