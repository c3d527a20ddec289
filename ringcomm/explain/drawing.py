"""The plan as a drawing: all steps on one sheet (.svg), or one after the other (.gif)."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Circle, FancyArrowPatch, Patch

from ringcomm.explain.contributions import Cells, History, Move, follow
from ringcomm.explain.times import Timed
from ringcomm.plan.plans import Plans
from ringcomm.units import readable_seconds

MAX_DRAWN_RANKS = 16
MAX_DRAWN_CHUNKS = 64
LEGEND = (
    "A chunk has a stripe for each rank whose data is in it. Numbers on arrows: the chunks sent."
)
COLUMNS = 2  # of a sheet: more steps in a row are too small to be read on a page
_NOW = "#d1570c"
_BEND = -0.15  # of arrows, outward on a ring
_LONG = 0.8  # for an arrow, in radii of the ring
_STRIPE = 8  # pixels
_ROW = 12  # pixels, of which 2 are gaps
_GAP = 0.04  # of a cell's width, on either side


def draw(plans: Plans, path: Path) -> None:
    """Writes `plans` to `path`, which ends in .svg or .gif.

    Raises:
        ValueError: there are too many ranks or chunks for distinct colours.
    """
    _check(plans)
    history = follow(plans)
    if path.suffix == ".svg":
        frames = len(history.cells)
        columns = min(COLUMNS, frames)
        rows = math.ceil(frames / columns)
        figure = _paper(rows, columns)
        figure.suptitle(str(plans).splitlines()[0])
        _draw_sheet(figure, plans, history, (rows, columns))
        _draw_legend(figure, plans.world_size)
        figure.savefig(path)
    else:
        _animation(plans, history, path)


def draw_beside(both: Sequence[Timed], path: Path) -> None:
    """Writes two plans beside each other to `path`, an .svg, with the time at which a step is done.

    Raises:
        ValueError: there are too many ranks or chunks for distinct colours.
    """
    for one in both:
        _check(one.plans)
    histories = [follow(one.plans) for one in both]
    rows = math.ceil(max(len(history.cells) for history in histories) / COLUMNS)
    figure = _paper(rows, len(both) * COLUMNS)
    parts = figure.subfigures(1, len(both), squeeze=False).flat
    for one, history, part in zip(both, histories, parts, strict=True):
        seconds = readable_seconds(one.seconds)
        part.suptitle(f"{str(one.plans).splitlines()[0]}\n{seconds}, simulated")
        times = [each.seconds for each in one.rounds]
        _draw_sheet(part, one.plans, history, (rows, COLUMNS), times)
    _draw_legend(figure, both[0].plans.world_size)
    figure.savefig(path)


def _check(plans: Plans) -> None:
    if plans.world_size > MAX_DRAWN_RANKS or plans.num_chunks > MAX_DRAWN_CHUNKS:
        raise ValueError(
            f"a drawing shows at most {MAX_DRAWN_RANKS} ranks and {MAX_DRAWN_CHUNKS} chunks, got "
            f"{plans.world_size} ranks with {plans.num_chunks} chunks; write a page (.html) instead"
        )


def _paper(rows: int, columns: int) -> Figure:
    return Figure(figsize=(4.2 * columns, 2.3 * rows + 1.0), layout="constrained")


def _draw_sheet(
    sheet: FigureBase,
    plans: Plans,
    history: History,
    shape: tuple[int, int],
    seconds: Sequence[float] = (),
) -> None:
    """All steps, and at what time each is done if that is given."""
    parts = sheet.subfigures(*shape, squeeze=False).flat
    for frame, part in zip(range(len(history.cells)), parts, strict=False):
        ring, buffers = part.subplots(1, 2, width_ratios=(1, 1.2))
        _draw_frame(ring, buffers, plans, history, frame)
        if frame and seconds:
            done = f"step {frame - 1}, done at {readable_seconds(seconds[frame - 1])}"
            ring.set_title(f"{done}\n{_phase(history, frame - 1)}".rstrip(), fontsize=9)


def _animation(plans: Plans, history: History, path: Path) -> None:
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    figure.suptitle(str(plans).splitlines()[0])
    ring, buffers = figure.subplots(1, 2, width_ratios=(1, 1.2))
    _draw_legend(figure, plans.world_size)

    def draw_frame(frame: int) -> list[Axes]:
        for axes in (ring, buffers):
            axes.clear()
        _draw_frame(ring, buffers, plans, history, frame)
        return [ring, buffers]

    animation = FuncAnimation(figure, draw_frame, frames=len(history.cells))
    animation.save(str(path), writer=PillowWriter(fps=1), dpi=125)


def _draw_legend(figure: Figure, world_size: int) -> None:
    """What colours, stripes and numbers mean, below everything else."""
    figure.legend(
        handles=[Patch(color=_color(r, world_size), label=f"rank {r}") for r in range(world_size)],
        title=LEGEND,
        loc="outside lower center",
        ncols=min(world_size, 8),
        fontsize=8,
        title_fontsize=8,
        handlelength=1,
        frameon=False,
    )


def _draw_frame(ring: Axes, buffers: Axes, plans: Plans, history: History, frame: int) -> None:
    """The state after `frame` steps, and the moves of the last of them."""
    moves = history.moves[frame - 1] if frame else []
    _draw_ring(ring, plans.world_size, moves)
    _draw_buffers(buffers, plans.world_size, history.cells[frame])
    phase = _phase(history, frame - 1) if frame else ""
    ring.set_title(f"step {frame - 1}\n{phase}".rstrip() if frame else "at first", fontsize=9)


def _phase(history: History, step: int) -> str:
    names = [name for name, count in history.phases for _ in range(count)]
    return names[step] if names else ""


def _color(rank: int, world_size: int) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(rank / world_size, 0.62, 0.7)


def _draw_ring(axes: Axes, world_size: int, moves: list[Move]) -> None:
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.axis("off")
    angles = [math.pi / 2 - 2 * math.pi * rank / world_size for rank in range(world_size)]
    places = [(math.cos(angle), math.sin(angle)) for angle in angles]
    radius = min(0.17, 1.6 / world_size)
    for rank, place in enumerate(places):
        axes.add_patch(Circle(place, radius, color=_color(rank, world_size), zorder=2))
        axes.text(*place, str(rank), ha="center", va="center", fontsize=9, zorder=3)
    for move in moves:
        _draw_arrow(axes, places[move.sender], places[move.receiver], radius)
        if move.num_chunks > 0 and len(moves) <= 2 * world_size:
            last = move.first_chunk + move.num_chunks - 1
            text = str(last) if move.num_chunks == 1 else f"{move.first_chunk}–{last}"
            box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": _NOW, "lw": 0.5}
            x, y = _label_place(places[move.sender], places[move.receiver])
            axes.text(x, y, text, ha="center", va="center", fontsize=7, bbox=box)


def _label_place(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """On an arrow's arc: in its middle, or on a long arrow nearer to its sender.

    Long arrows meet in the middle of the ring, and two that go to and fro in their own.
    """
    (x0, y0), (x1, y1) = start, end
    part = 0.5 if math.dist(start, end) < _LONG else 0.36
    bend = 2 * part * (1 - part) * _BEND
    return (
        x0 + part * (x1 - x0) + bend * (y1 - y0),
        y0 + part * (y1 - y0) - bend * (x1 - x0),
    )


def _draw_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], radius: float
) -> None:
    """An arc from the rim of one rank's circle to the rim of another's."""
    (x0, y0), (x1, y1) = start, end
    part = 1.2 * radius / math.dist(start, end)
    dx, dy = part * (x1 - x0), part * (y1 - y0)
    axes.add_patch(
        FancyArrowPatch(
            (x0 + dx, y0 + dy),
            (x1 - dx, y1 - dy),
            connectionstyle=f"arc3,rad={_BEND}",
            arrowstyle="-|>",
            shrinkA=0,
            shrinkB=0,
            mutation_scale=9,
            color=_NOW,
            linewidth=0.8,
        )
    )


def _draw_buffers(axes: Axes, world_size: int, cells: Cells) -> None:
    """A stripe for each rank whose data is in a cell."""
    num_chunks = len(cells[0])
    axes.set_xlabel("chunk", fontsize=8)
    axes.set_ylabel("rank", fontsize=8)
    axes.tick_params(labelsize=7, length=0)
    if num_chunks == 0:
        return
    image = _stripes(world_size, cells)
    axes.imshow(image, extent=(0, num_chunks, world_size, 0), aspect="auto", interpolation="none")
    axes.set_xticks(np.arange(num_chunks) + 0.5, map(str, range(num_chunks)))
    axes.set_yticks(np.arange(world_size) + 0.5, map(str, range(world_size)))
    for spine in axes.spines.values():
        spine.set_visible(False)


def _stripes(world_size: int, cells: Cells) -> npt.NDArray[np.uint8]:
    """(height, width, 3): cells with gaps between them.

    An image, as 16 ranks have 127,000 stripes in a sheet; each is several pixels wide, so that
    programs that smooth images leave it its colour.
    """
    width = world_size * _STRIPE
    gap = math.ceil(_GAP * width)
    image = np.full((world_size * _ROW, len(cells[0]) * (width + 2 * gap), 3), 255, np.uint8)
    for rank, row in enumerate(cells):
        lines = slice(rank * _ROW + 1, (rank + 1) * _ROW - 1)
        for chunk, mask in enumerate(row):
            start = chunk * (width + 2 * gap) + gap
            for source in range(world_size):
                if mask >> source & 1:
                    left = start + source * _STRIPE
                    color = [round(255 * part) for part in _color(source, world_size)]
                    image[lines, left : left + _STRIPE] = color
    return image
