"""The plan as a page that needs nothing but a browser."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources

from ringcomm.explain.contributions import follow
from ringcomm.explain.sums import sums
from ringcomm.plan.plans import ROOTED, Plans

MAX_CELLS = 1 << 14  # of all ranks; more would not be seen, nor drawn smoothly


def page(plans: Plans) -> str:
    """A self-contained HTML page that animates `plans`.

    Raises:
        PlanError: the plans are wrong.
        ValueError: there are more than 16384 pairs of rank and chunk.
    """
    count = plans.world_size * plans.num_chunks
    if count > MAX_CELLS:
        raise ValueError(
            f"a page shows at most {MAX_CELLS} pairs of rank and chunk; {plans.world_size} ranks "
            f"with {plans.num_chunks} chunks make {count}"
        )
    history = follow(plans)
    data = {
        "world_size": plans.world_size,
        "num_chunks": plans.num_chunks,
        "phases": history.phases,
        "complete": [format(mask, "x") for mask in history.complete],
        "initial": [[format(mask, "x") for mask in row] for row in history.cells[0]],
        "steps": [
            {
                "moves": [
                    {
                        "from": move.sender,
                        "to": move.receiver,
                        "first": move.first_chunk,
                        "count": move.num_chunks,
                        "text": str(move),
                    }
                    for move in moves
                ],
                # Rank, chunk and its new contents, of the cells that this step changes.
                "changes": [
                    [rank, chunk, format(now, "x")]
                    for rank, (old_row, row) in enumerate(zip(before, after, strict=True))
                    for chunk, (old, now) in enumerate(zip(old_row, row, strict=True))
                    if old != now
                ],
            }
            for moves, before, after in zip(
                history.moves, history.cells[:-1], history.cells[1:], strict=True
            )
        ],
    }
    of_root = f", root {plans.root}" if plans.collective in ROOTED else ""
    title = f"{plans.collective} ({plans.algorithm}), {plans.world_size} ranks{of_root}"
    files = resources.files("ringcomm.explain")
    parts = {
        "@TITLE@": html.escape(title),
        "@STYLE@": files.joinpath("page.css").read_text("utf-8"),
        "@SCRIPT@": files.joinpath("page.js").read_text("utf-8"),
        "@SUMS@": _list(sums(plans)),
        # A "<" could end the script element.
        "@DATA@": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return fill(files.joinpath("page.html").read_text("utf-8"), parts)


def _list(sums_of_chunks: Mapping[str, str]) -> str:
    if not sums_of_chunks:
        return ""
    items = "".join(f"<dt>{chunks}</dt><dd>{text}</dd>" for chunks, text in sums_of_chunks.items())
    return f"""<div id="sums">
      <h2>Sums</h2>
      <p>Parentheses hold what is added in a step of its own, and then rounded.</p>
      <dl>{items}</dl>
    </div>"""


def fill(text: str, parts: Mapping[str, str]) -> str:
    """The text with each part, in this order, in place of its mark."""
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text
