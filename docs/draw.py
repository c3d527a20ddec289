"""Draws the pictures of docs/pages/assets: the folders of csrc/, and the way of a tensor.

    python docs/draw.py

The first picture comes from the #include lines of csrc/, the others from the lists below. A test
compares the committed pictures with what this draws.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "pages" / "assets"
INCLUDE = re.compile(r'^#include "([\w/]+)/\w+\.h"', re.M)

LINE = 16  # pixels, of text
GAP = 26  # between rows
MARGIN = 18  # of a box, on both sides
FILLS = {"rank": "#e8eef9", "memory": "#fdf3dc", "head": "none"}


class Box(NamedTuple):
    """Text at a place of a grid, in a rank's hands or in memory."""

    column: int
    row: int
    text: str
    kind: str = "rank"


Arrow = tuple[int, int]  # from and to, by their places in the list of boxes


# ---- The folders of csrc/


def folders() -> dict[str, set[str]]:
    """The folders that each folder of csrc/ includes."""
    csrc = ROOT / "csrc"
    sources = [path for path in sorted(csrc.rglob("*.*")) if path.suffix in (".h", ".cpp", ".cu")]
    found: dict[str, set[str]] = {}
    for path in sources:
        own = path.parent.relative_to(csrc).as_posix()
        found.setdefault(own, set()).update(INCLUDE.findall(path.read_text()))
    return {name: (others & found.keys()) - {name} for name, others in found.items()}


def reached(name: str, below: dict[str, set[str]]) -> set[str]:
    """All folders that a folder includes, directly or through others."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        new = below[waiting.pop()] - seen
        seen |= new
        waiting.extend(new)
    return seen


def floors(below: dict[str, set[str]]) -> list[list[str]]:
    """The folders by floors, the highest first: a folder includes those of lower floors only.

    Raises:
        ValueError: folders include each other.
    """
    left = dict(below)
    found: list[list[str]] = []
    while left:
        lowest = sorted(name for name, others in left.items() if not others & left.keys())
        if not lowest:
            raise ValueError(f"these folders include each other: {', '.join(sorted(left))}")
        found.insert(0, lowest)
        left = {name: others for name, others in left.items() if name not in lowest}
    return found


def direct(below: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that no way through a third folder replaces."""
    return {
        (name, other)
        for name, others in below.items()
        for other in others
        if not any(other in reached(third, below) for third in others - {other})
    }


def architecture() -> str:
    """The folders as boxes, and an arrow from each to those that it needs."""
    below = folders()
    rows = floors(below)
    width = max(len(names) for names in rows)
    boxes: list[Box] = []
    places: dict[str, int] = {}
    for row, names in enumerate(rows):
        for index, name in enumerate(names):
            places[name] = len(boxes)
            boxes.append(Box(2 * index + width - len(names), row, f"csrc/{name}"))
    arrows = sorted((places[name], places[other]) for name, other in direct(below))
    return picture(boxes, arrows, column=96, span=2, is_down=True)


# ---- The way of a tensor

EAGER = (
    [
        Box(0, 0, "rank 0", "head"),
        Box(1, 0, "shared memory", "head"),
        Box(2, 0, "rank 1", "head"),
        Box(0, 1, "announces its call,\nwith its input"),
        Box(1, 1, "announcement 0:\ncall, input", "memory"),
        Box(1, 2, "announcement 1:\ncall, input", "memory"),
        Box(2, 2, "announces its call,\nwith its input"),
        Box(0, 3, "waits for all,\ncompares the calls,\nadds all inputs"),
        Box(2, 3, "waits for all,\ncompares the calls,\nadds all inputs"),
    ],
    [(3, 4), (6, 5), (4, 7), (5, 7), (4, 8), (5, 8)],
)
SLICES = (
    [
        Box(0, 0, "rank 0", "head"),
        Box(1, 0, "outbox of rank 0", "head"),
        Box(2, 0, "rank 1", "head"),
        Box(3, 0, "outbox of rank 1", "head"),
        Box(4, 0, "rank 2", "head"),
        Box(0, 1, "lane 0: copies\nslice 0 of a chunk,\ncounts to 1"),
        Box(1, 1, "slot: slice 0", "memory"),
        Box(2, 1, "reads, adds its own,\nwrites: one pass;\ncounts to 1"),
        Box(3, 1, "slot: sum of 0 and 1", "memory"),
        Box(4, 1, "reads, adds its own,\nkeeps, passes on"),
        Box(0, 2, "lane 1: copies\nslice 1"),
        Box(1, 2, "slot: slice 1", "memory"),
        Box(2, 2, "the same, while\nlane 0 waits"),
        Box(3, 2, "slot: sum of 0 and 1", "memory"),
        Box(4, 2, "the same"),
    ],
    [(5, 6), (6, 7), (7, 8), (8, 9), (10, 11), (11, 12), (12, 13), (13, 14)],
)
ZERO_COPY = (
    [
        Box(0, 0, "rank 0", "head"),
        Box(1, 0, "memory that both map", "head"),
        Box(2, 0, "rank 1", "head"),
        Box(0, 1, "announces where\nits tensor is"),
        Box(1, 1, "tensor of rank 0:\nshare 0, share 1", "memory"),
        Box(2, 1, "announces where\nits tensor is"),
        Box(0, 2, "adds share 0 of\nboth, writes it\nto both"),
        Box(1, 2, "tensor of rank 1:\nshare 0, share 1", "memory"),
        Box(2, 2, "adds share 1 of\nboth, writes it\nto both"),
        Box(0, 3, "says so, waits\nfor rank 1"),
        Box(2, 3, "says so, waits\nfor rank 0"),
    ],
    [(6, 4), (6, 7), (8, 4), (8, 7), (3, 6), (5, 8), (6, 9), (8, 10)],
)
HOSTS = (
    [
        Box(0, 0, "host 0", "head"),
        Box(1, 0, "its memory", "head"),
        Box(2, 0, "network", "head"),
        Box(3, 0, "memory", "head"),
        Box(4, 0, "host 1", "head"),
        Box(0, 1, "leader waits for\nits host's ranks"),
        Box(1, 1, "announcements\nof host 0", "memory"),
        Box(2, 1, "one message to\neach other leader"),
        Box(3, 1, "the same,\nmirrored", "memory"),
        Box(4, 1, "all ranks compare\nall calls"),
        Box(0, 2, "a rank writes\nits slice"),
        Box(1, 2, "send buffer", "memory"),
        Box(2, 2, "UCX or gloo"),
        Box(3, 2, "receive buffer,\nposted ahead", "memory"),
        Box(4, 2, "a rank adds\nits own"),
    ],
    [(5, 6), (6, 7), (7, 8), (8, 9), (10, 11), (11, 12), (12, 13), (13, 14)],
)
MESSAGES = (
    [
        Box(0, 0, "rank, on the CPU", "head"),
        Box(1, 0, "communication stream", "head"),
        Box(2, 0, "reduction stream", "head"),
        Box(0, 1, "enqueues all calls\nof the schedule,\nthen returns"),
        Box(1, 1, "ncclSend, ncclRecv:\nslice 0"),
        Box(1, 2, "ncclSend, ncclRecv:\nslice 1"),
        Box(2, 2, "adds slice 0"),
        Box(1, 3, "sends the sum\nof slice 0"),
        Box(2, 3, "adds slice 1"),
    ],
    [(3, 4), (4, 5), (4, 6), (5, 7), (6, 7), (5, 8)],
)
FUSED = (
    [
        Box(0, 0, "GPU 0, control warp", "head"),
        Box(1, 0, "GPU 0, data warps", "head"),
        Box(2, 0, "memory of GPU 0", "head"),
        Box(3, 0, "GPU 1, data warps", "head"),
        Box(4, 0, "GPU 1, control warp", "head"),
        Box(0, 1, "waits until the slot\nis free, writes\na work item"),
        Box(1, 1, "copies a slice"),
        Box(2, 1, "outbox: slice", "memory"),
        Box(3, 1, "reads the outbox,\nadds, keeps,\npasses on"),
        Box(0, 2, "counts the step"),
        Box(2, 2, "count of steps", "memory"),
        Box(4, 2, "waits for the count,\nwrites a work item"),
    ],
    [(5, 6), (6, 7), (7, 8), (6, 9), (9, 10), (10, 11), (11, 8)],
)
MAIL = (
    [
        Box(0, 0, "rank 0, isend", "head"),
        Box(1, 0, "mail box from 0 to 1", "head"),
        Box(2, 0, "rank 1, recv", "head"),
        Box(0, 1, "writes tag, dtype,\nsize and data,\ncounts them posted"),
        Box(1, 1, "slots", "memory"),
        Box(2, 1, "takes the first message\nwith its tag,\ncounts its slots taken"),
        Box(0, 2, "writes the slots again"),
        Box(1, 2, "free slots", "memory"),
        Box(2, 2, "puts messages that\ncame too early aside"),
    ],
    [(3, 4), (4, 5), (5, 7), (7, 6), (4, 8)],
)
PATHS = {
    "eager": EAGER,
    "slices": SLICES,
    "zero_copy": ZERO_COPY,
    "hosts": HOSTS,
    "messages": MESSAGES,
    "fused": FUSED,
    "mail": MAIL,
}


# ---- Drawing


def picture(
    boxes: list[Box],
    arrows: Iterable[Arrow],
    column: int = 196,
    span: int = 1,
    is_down: bool = False,
) -> str:
    """An SVG of the boxes on their grid.

    Each is `span` columns wide. Arrows go from side to side, or down.
    """
    num_rows = max(box.row for box in boxes) + 1
    heights = [
        max((_height(box) for box in boxes if box.row == row), default=0) for row in range(num_rows)
    ]
    tops = [GAP // 2 + sum(heights[:row]) + GAP * row for row in range(num_rows)]
    width = (max(box.column for box in boxes) + span) * column
    height = tops[-1] + heights[-1] + GAP // 2
    places = [
        (
            box.column * column + MARGIN,
            tops[box.row] + (heights[box.row] - _height(box)) // 2,
            span * column - 2 * MARGIN,
            _height(box),
        )
        for box in boxes
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
    ]
    lines += [_arrow(places[start], places[end], is_down) for start, end in arrows]
    lines += [_box(box, place) for box, place in zip(boxes, places, strict=True)]
    return "\n".join([*lines, "</svg>", ""])


Place = tuple[int, int, int, int]  # left, top, width, height


def _height(box: Box) -> int:
    return LINE * len(box.text.splitlines()) + (0 if box.kind == "head" else 12)


def _box(box: Box, place: Place) -> str:
    left, top, width, height = place
    lines = box.text.splitlines()
    first = top + (height - LINE * len(lines)) // 2 + 12
    weight = ' font-weight="bold"' if box.kind == "head" else ""
    text = "".join(
        f'<text x="{left + width // 2}" y="{first + LINE * index}" text-anchor="middle"{weight}>'
        f"{escape(line)}</text>"
        for index, line in enumerate(lines)
    )
    if box.kind == "head":
        return text
    frame = f'x="{left}" y="{top}" width="{width}" height="{height}" rx="5"'
    return f'<rect {frame} fill="{FILLS[box.kind]}" stroke="#888"/>{text}'


def _arrow(start: Place, end: Place, is_down: bool) -> str:
    """From below to the top, or from side to side."""
    left, top, width, height = start
    to_left, to_top, to_width, to_height = end
    if is_down or to_left == left:
        x1, x2 = left + width // 2, to_left + to_width // 2
        y1, y2 = (top + height, to_top) if to_top > top else (top, to_top + to_height)
    else:
        x1, x2 = (left + width, to_left) if to_left > left else (left, to_left + to_width)
        y1, y2 = top + height // 2, to_top + to_height // 2
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#444" marker-end="url(#end)"/>'


def pictures() -> dict[Path, str]:
    """All pictures, by their files."""
    drawn = {ASSETS / f"path_{name}.svg": picture(*path) for name, path in PATHS.items()}
    return {ASSETS / "architecture.svg": architecture(), **drawn}


if __name__ == "__main__":
    for path, drawn in pictures().items():
        path.write_text(drawn)
        print(path.relative_to(ROOT))
