"""Names in csrc/ are the field's words, and those of CONTRIBUTING.md's glossary exist."""

from __future__ import annotations

import re
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
