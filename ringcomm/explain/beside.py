"""Two plans beside each other: a page on which both go by simulated time, a table, and JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources

from rich.table import Table

from ringcomm.explain.page import fill, page
from ringcomm.explain.times import Timed
from ringcomm.units import readable_nbytes, readable_seconds


def beside_page(both: Sequence[Timed], network: str) -> str:
    """A self-contained HTML page that plays the plans on one clock.

    Args:
        both: plans of one collective and world size.
        network: what they run on, in words.

    Raises:
        ValueError: there are more than 16384 pairs of rank and chunk.
    """
    plans = both[0].plans
    names = " beside ".join(one.plans.algorithm for one in both)
    data = [
        {"name": one.plans.algorithm, "ends": [each.seconds for each in one.rounds]} for one in both
    ]
    frames = "\n".join(
        f'<iframe title="{html.escape(one.plans.algorithm)}" '
        f'srcdoc="{html.escape(page(one.plans))}"></iframe>'
        for one in both
    )
    files = resources.files("ringcomm.explain")
    style = "".join(files.joinpath(f"{name}.css").read_text("utf-8") for name in ("page", "beside"))
    return fill(
        files.joinpath("beside.html").read_text("utf-8"),
        {
            "@TITLE@": html.escape(f"{plans.collective}: {names}, {plans.world_size} ranks"),
            "@NETWORK@": html.escape(network),
            "@STYLE@": style,
            "@SCRIPT@": files.joinpath("beside.js").read_text("utf-8"),
            "@DATA@": json.dumps(data).replace("<", "\\u003c"),
            "@FRAMES@": frames,
        },
    )


def record(one: Timed) -> dict[str, object]:
    """For machines: bytes, and times in seconds."""
    return {
        "algorithm": one.plans.algorithm,
        "num_steps": len(one.rounds),
        "nbytes": one.nbytes,
        "most_nbytes_of_a_rank": one.most_nbytes,
        "seconds": one.seconds,
        "steps": [
            {
                "phase": each.phase,
                "num_transfers": each.num_transfers,
                "nbytes": each.nbytes,
                "seconds": each.seconds,
            }
            for each in one.rounds
        ],
    }


def table(both: Sequence[Timed]) -> Table:
    """Step beside step: what is sent in it, by all ranks, and when it is done."""
    made = Table("step", box=None)
    for one in both:
        made.add_column(one.plans.algorithm, justify="right")
        for name in ("transfers", "sent", "done at"):
            made.add_column(name, justify="right")
    for step in range(max(len(one.rounds) for one in both)):
        cells = [str(step)]
        for one in both:
            if step < len(one.rounds):
                each = one.rounds[step]
                sent, end = readable_nbytes(round(each.nbytes)), readable_seconds(each.seconds)
                cells += [each.phase, str(each.num_transfers), sent, end]
            else:
                cells += [""] * 4
        made.add_row(*cells, end_section=step + 1 == max(len(one.rounds) for one in both))
    cells = ["all"]
    for one in both:
        transfers = sum(each.num_transfers for each in one.rounds)
        sent, end = readable_nbytes(round(one.nbytes)), readable_seconds(one.seconds)
        steps = "1 step" if len(one.rounds) == 1 else f"{len(one.rounds)} steps"
        cells += [steps, str(transfers), sent, f"[bold]{end}[/]"]
    made.add_row(*cells)
    return made
