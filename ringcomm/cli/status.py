"""python -m ringcomm status: what the groups of running jobs on this host are doing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ringcomm.live import GroupStatus, RankStatus


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Shows the groups of this user's running jobs on this host: who is where in which "
        "operation, and who waits for whom. It only reads."
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        const=1.0,
        type=_seconds,
        metavar="SECONDS",
        help="show it again and again, every second if not given",
    )
    parser.add_argument("--json", action="store_true", help="for machines: one JSON list of groups")


def run(options: argparse.Namespace) -> int:
    """Prints the groups. Returns 0."""
    from ringcomm.live import running

    if options.watch is None:
        _print(running(), options.json)
        return 0
    try:
        if options.json:
            while True:
                _print(running(), is_json=True)
                time.sleep(options.watch)
        with Live(_picture(running()), auto_refresh=False) as live:
            while True:
                time.sleep(options.watch)
                live.update(_picture(running()), refresh=True)
    except KeyboardInterrupt:
        return 0


def _print(groups: list[GroupStatus], is_json: bool) -> None:
    if is_json:
        print(json.dumps([dataclasses.asdict(group) | {"why": group.why()} for group in groups]))
    else:
        Console().print(_picture(groups))


def _picture(groups: list[GroupStatus]) -> RenderableType:
    if not groups:
        return Text("No group of yours runs on this host.")
    return Group(*(part for group in groups for part in _table(group)))


def _table(group: GroupStatus) -> list[RenderableType]:
    title = f"group {group.name or 'without a name'}, {len(group.ranks)} ranks"
    if not group.complete:
        title += ", being made"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    on_device = any(rank.enqueued_on_device for rank in group.ranks)
    for name in ("rank", "pid", "state", "done"):
        table.add_column(name, justify="left" if name == "state" else "right")
    if on_device:
        table.add_column("on GPU", justify="right")
    table.add_column("moved", justify="right")
    table.add_column("held", justify="right")
    table.add_column("in", overflow="fold")
    table.add_column("waits for", overflow="fold")
    for rank in group.ranks:
        gpu = [f"{rank.completed_on_device}/{rank.enqueued_on_device}"] if on_device else []
        table.add_row(
            str(rank.global_rank),
            str(rank.pid or ""),
            rank.state,
            str(rank.completed),
            *gpu,
            _readable(rank.nbytes),
            _readable(rank.held),
            rank.doing,
            _waits(rank, group),
        )
    notes = [Text(f"broken: {group.failure}", "red")] if group.failure else []
    notes += [Text(reason, "yellow") for reason in group.why()]
    return [table, *notes, Text()]


def _waits(rank: RankStatus, group: GroupStatus) -> str:
    if not rank.waits:
        return ""
    peer = "any" if rank.waits_for is None else group.ranks[rank.waits_for].global_rank
    return f"rank {peer}, {rank.waits:.1f} s"


def _readable(nbytes: int) -> str:
    """Such as 1.5 GB: how much it was, not to be calculated with."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
