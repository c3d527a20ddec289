"""A lane as a drawing: what each rank does when, and which rank it waits for (.svg)."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch

from ringcomm.plan.lane import Turn, replay
from ringcomm.plan.plans import Plans
from ringcomm.plan.program import verb

MAX_DRAWN_TURNS = 1000
TRIP_TIME = 0.25  # of a flag, in passes over a slice
_WAITS = "#e4e4e4"
_KEPT = "#d1570c"
_BAR = 0.62  # of the row that each rank has
_SHORT = {"recv": "r", "reduce": "red", "copy": "c", "send": "s"}
LETTERS = "below a chunk's number: r receive, red reduce, c copy into the buffer or scratch, s send"


def draw(plans: Plans, num_slices: int, path: Path) -> None:
    """Writes what all ranks do in a lane that has `num_slices` slices to `path`, an .svg.

    Raises:
        ValueError: there are too many bars to read, or none, as in a barrier.
    """
    count = num_slices * sum(len(plans.program(rank)) for rank in range(plans.world_size))
    if count > MAX_DRAWN_TURNS:
        raise ValueError(
            f"a timeline shows at most {MAX_DRAWN_TURNS} turns, and {plans.world_size} ranks have "
            f"{count} with {num_slices} slices of every chunk"
        )
    turns = replay(plans, num_slices, trip_time=TRIP_TIME)
    _sheet(plans, turns, num_slices).savefig(path)


def _sheet(plans: Plans, turns: Sequence[Turn], num_slices: int) -> Figure:
    total = max((turn.end for turn in turns), default=1.0)
    figure = Figure(
        figsize=(max(7.0, 0.5 * total + 1), 0.62 * plans.world_size + 1.8), layout="constrained"
    )
    slices = "1 slice" if num_slices == 1 else f"{num_slices} slices"
    figure.suptitle(f"{str(plans).splitlines()[0]}, a lane with {slices} of each chunk", fontsize=9)
    axes = figure.subplots()
    _draw_turns(axes, plans, turns, num_slices)
    _draw_what_is_awaited(axes, turns)
    axes.set(xlim=(0, total), ylim=(plans.world_size - 0.5, -0.5))
    axes.set_yticks(range(plans.world_size), [f"rank {r}" for r in range(plans.world_size)])
    axes.tick_params(labelsize=7, length=0)
    axes.set_xlabel(f"time, in passes over a slice; a flag takes {TRIP_TIME:g}", fontsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(
        handles=[
            Patch(color=_color(0, 1, 0, 1), label="a colour for each chunk; paler: a later slice"),
            Patch(color=_WAITS, label="the rank waits"),
            Patch(color=_KEPT, label="arrow: from the turn that it waits for"),
        ],
        title=LETTERS,
        title_fontsize=7,
        loc="outside lower center",
        ncols=3,
        fontsize=7,
        frameon=False,
    )
    return figure


def _draw_turns(axes: Axes, plans: Plans, turns: Sequence[Turn], num_slices: int) -> None:
    programs = [plans.program(rank) for rank in range(plans.world_size)]
    for turn in turns:
        row = (turn.rank - _BAR / 2, _BAR)
        if turn.begin > turn.free:
            axes.broken_barh([(turn.free, turn.begin - turn.free)], row, color=_WAITS)
        action = programs[turn.rank][turn.action]
        color = _color(action.chunk, plans.num_chunks, turn.slice, num_slices)
        width = turn.end - turn.begin
        axes.broken_barh([(turn.begin, width)], row, fc=color, ec="white", lw=1)
        axes.text(
            turn.begin + width / 2,
            turn.rank - 0.09,
            str(action.chunk),
            ha="center",
            va="center",
            fontsize=7,
        )
        axes.text(
            turn.begin + width / 2,
            turn.rank + 0.15,
            _short(verb(action)),
            ha="center",
            va="center",
            fontsize=6,
        )


def _draw_what_is_awaited(axes: Axes, turns: Sequence[Turn]) -> None:
    by_name = {(turn.rank, turn.action, turn.slice): turn for turn in turns}
    for turn in turns:
        if turn.waits_for is None:
            continue
        other = by_name[turn.waits_for]
        side = 1 if other.rank < turn.rank else -1
        axes.add_patch(
            FancyArrowPatch(
                (other.end, other.rank + side * _BAR / 2),
                (turn.begin, turn.rank - side * _BAR / 2),
                arrowstyle="-|>",
                shrinkA=0,
                shrinkB=0,
                mutation_scale=5,
                color=_KEPT,
                linewidth=0.6,
            )
        )


def _short(name: str) -> str:
    """As it fits into a bar: recv-reduce-copy-send is r-red-c-s."""
    return "-".join(_SHORT[part] for part in name.split("-"))


def _color(chunk: int, num_chunks: int, at: int, num_slices: int) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(chunk / num_chunks, 0.6 + 0.28 * at / num_slices, 0.7)
