"""The table of plans for fused kernels, as the documentation has it and as the code has it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLANS = {
    "kOneShot": "one_shot",
    "kDoubling": "recursive_doubling",
    "kRing": "ring",
    "kDirect": "direct",
}
CHAINS = ("reduce", "broadcast")  # have no ring

LINE = re.compile(r"\{Collective::k(\w+), k(Any|Once), (\w+), ([^,]+), AlgorithmFamily::(\w+)\}")


def words(name: str) -> str:
    """AllReduce as all-reduce."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def code() -> list[list[str]]:
    rows = []
    for collective, sums, ranks, size, family in LINE.findall(
        (ROOT / "csrc" / "core" / "policy.cpp").read_text()
    ):
        name = words(collective)
        plan = "chain" if PLANS[family] == "ring" and name in CHAINS else PLANS[family]
        limit = "" if size == "kAllSizes" else size.replace(" * k", " ")
        rows.append(
            [
                name,
                "any" if sums == "Any" else "rounded once",
                "" if ranks == "kAllRanks" else ranks,
                limit,
                f"`{plan}`",
            ]
        )
    return rows


def documented() -> list[list[str]]:
    page = (ROOT / "docs" / "pages" / "design" / "cuda.md").read_text()
    table = page.split("| collective | sums |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_documentation_quotes_the_table():
    assert len(code()) > 10
    assert documented() == code()
