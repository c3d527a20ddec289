"""python -m ringcomm status: what the groups of running jobs on this host are doing."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ringcomm.units import capital
from ringcomm.usage import INTERRUPTED

if TYPE_CHECKING:
    from ringcomm.live import GroupStatus, RankStatus
    from ringcomm.waiting import Waits

_LEFT = ("state",)  # columns of words; the others are numbers


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
        "Shows the groups of this user's running jobs on this host: what each rank does, who waits "
        "for whom, and what the groups chose when they were made. It only reads."
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        const=1.0,
        type=_seconds,
        metavar="SECONDS",
        help="show it again and again, every second if not given; in a file or a pipe, or with "
        "--slow, with the time before each",
    )
    parser.add_argument(
        "--slow",
        nargs="?",
        const=10.0,
        type=_seconds,
        metavar="SECONDS",
        help="look for so many seconds, 10 if not given, and say which ranks the others wait for",
    )
    parser.add_argument("--json", action="store_true", help="for machines: one JSON list of groups")


def run(options: argparse.Namespace) -> int:
    """Prints the groups. Returns the exit code."""
    try:
        show = functools.partial(_print, options.json)
        if options.slow is not None:
            show = functools.partial(_print_slow, options.slow, options.json)
        if options.watch is None:
            show()
        elif _is_screen() and not options.json and options.slow is None:
            _watch(options.watch)
        else:
            _append(show, options.watch, options.json)
    except KeyboardInterrupt:
        return INTERRUPTED  # without a line: it is the usual end of --watch
    return 0


def _is_screen() -> bool:
    """Whether what was written can be written over."""
    return sys.stdout.isatty() and not Console().is_dumb_terminal


def _print(is_json: bool) -> None:
    from ringcomm.live import running

    groups = running()
    if is_json:
        shown = [dataclasses.asdict(group) | {"why": group.why()} for group in groups]
        print(json.dumps(shown), flush=True)
    else:
        _print_lines(lines(groups, Console().width))


def _print_slow(seconds: float, is_json: bool) -> None:
    from ringcomm.waiting import watch

    found = watch(seconds)
    if is_json:
        print(json.dumps([dataclasses.asdict(waits) for waits in found]), flush=True)
    else:
        _print_lines(_slow_lines(found, Console().width))


def _print_lines(texts: Iterable[Text]) -> None:
    if sys.stdout.isatty():
        console = Console()
        for text in texts:
            console.print(text, soft_wrap=True)
    else:
        for text in texts:
            print(text.plain)
    sys.stdout.flush()


def _append(show: Callable[[], None], seconds: float, is_json: bool) -> None:
    """Writes behind what was written before, again and again."""
    while True:
        begin = time.monotonic()
        if not is_json:
            print(time.strftime("%Y-%m-%d %H:%M:%S"))
        show()
        if not is_json:
            print(flush=True)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))


def _watch(seconds: float) -> None:
    """Writes to a terminal, over what was there before."""
    from ringcomm.live import running

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            width, height = console.size
            shown = list(lines(running(), width))
            live.update(Group(*_cut(shown, height - 1)), refresh=True)
            time.sleep(seconds)


def _cut(lines: list[Text], most: int) -> list[Text]:
    """The first of the lines, and how many are hidden."""
    if len(lines) > most:
        hidden = len(lines) - most + 1
        lines = [*lines[: most - 1], Text(f"{hidden} more lines: the terminal is full", "reverse")]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines


def lines(groups: list[GroupStatus], width: int) -> Iterator[Text]:
    """What is wrong, then the groups, job by job."""
    if not groups:
        yield Text("No group of yours runs on this host.")
    yield from _problems(groups, width)
    for job in dict.fromkeys(group.job for group in groups):
        yield from _wrapped(f"job {job}", width, "bold")
        for group in groups:
            if group.job == job:
                yield from _group(group, width)
        yield Text()


def _slow_lines(found: list[Waits], width: int) -> Iterator[Text]:
    """Which ranks are late, group by group."""
    if not found:
        yield Text("No group of yours runs on this host.")
    for job in dict.fromkeys(waits.group.job for waits in found):
        yield from _wrapped(f"job {job}", width, "bold")
        for waits in found:
            if waits.group.job == job:
                for text, style in _slow(waits):
                    yield from _wrapped(text, width, style)


def _slow(waits: Waits) -> Iterator[tuple[str, str]]:
    group, of_time = waits.group, f"of {waits.seconds:.3g} s"
    rank_of = {rank.global_rank: rank for rank in group.ranks}
    for late in waits.late:
        rank = rank_of[late.rank]
        yield (
            f"Rank {late.rank} (pid {rank.pid}, host {rank.host}) of {group.title()}, is late: the "
            f"others waited {late.waited:.3g} s {of_time} for it, most in {late.worst}. It was "
            f"seen to come last in {late.times_last} of {waits.num_calls} calls.",
            "yellow",
        )
    for reason in group.why():
        yield f"{capital(group.title())}: {reason}", "yellow"
    if not waits.num_calls:
        yield f"{capital(group.title())}, ended no call.", ""
    elif not waits.late:
        yield (
            f"No rank of {group.title()}, was late too often: in {waits.num_calls} calls, "
            f"{waits.waited:.3g} s {of_time} were spent waiting for whoever came last.",
            "",
        )


def _problems(groups: list[GroupStatus], width: int) -> Iterator[Text]:
    has_several_jobs = len({group.job for group in groups}) > 1
    for group in groups:
        found = [(f"It is broken: {group.failure}", "red")] if group.failure else []
        found += [(reason, "yellow") for reason in group.why()]
        if not found:
            continue
        title = f"{group.title()}, job {group.job}" if has_several_jobs else group.title()
        yield from _wrapped(f"{capital(title)}:", width)
        for text, style in found:
            yield from _wrapped(text, width, style, indent=2)
        yield Text()


def _group(group: GroupStatus, width: int) -> Iterator[Text]:
    yield from _wrapped(group.title() + ("" if group.complete else ", being made"), width)
    for line in group.chosen.summary():
        yield from _wrapped(line, width, "dim", indent=2)
    rows = _table(group)
    does = [_does(rank, group) for rank in group.ranks]
    for row in rows[: -len(does)]:
        yield Text(row, "bold")
    if any(does):
        yield Text("      operation; what it waits for", "bold")
    for row, text in zip(rows[-len(does) :], does, strict=True):
        yield Text(row)
        if text:
            yield from _wrapped(text, width, indent=6)


def _wrapped(text: str, width: int, style: str = "", indent: int = 0) -> Iterator[Text]:
    """Lines of the text, the later ones further to the right. Breaks between words alone."""
    lines = textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )
    for line in lines:
        yield Text(line, style)


def _table(group: GroupStatus) -> list[str]:
    """A row for each rank, below two of headings."""
    on_device = any(rank.enqueued_on_device for rank in group.ranks)
    on_device = on_device or any(rank.held_on_device for rank in group.ranks)
    gpu = [("", "on GPU")] if on_device else []
    heads = [("", "rank"), ("", "pid"), ("", "state"), ("", "done"), *gpu]
    heads += [("", "sent"), ("shared", "memory")]
    heads += [("GPU", "memory")] if on_device else []
    rows: list[list[str]] = [list(row) for row in zip(*heads, strict=True)]
    for rank in group.ranks:
        done = f"{rank.completed_on_device}/{rank.enqueued_on_device}"
        gpu_cells = [done] if on_device else []
        rows.append([str(rank.global_rank), str(rank.pid or ""), rank.state, str(rank.completed)])
        rows[-1] += [*gpu_cells, _readable(rank.nbytes), _readable(rank.held)]
        rows[-1] += [_readable(rank.held_on_device)] if on_device else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = rows[1]
    return ["  ".join(map(_aligned, row, widths, names)).rstrip() for row in rows]


def _aligned(cell: str, width: int, name: str) -> str:
    return cell.ljust(width) if name in _LEFT else cell.rjust(width)


def _does(rank: RankStatus, group: GroupStatus) -> str:
    from ringcomm.live import readable_wait

    waits = ""
    if rank.waits:
        peer = rank.waits_for
        name = "any rank" if peer is None else f"rank {group.ranks[peer].global_rank}"
        waits = f"waits for {name}, {readable_wait(rank.waits)}"
    return "; ".join(filter(None, [rank.doing, waits]))


def _readable(nbytes: int) -> str:
    """Such as 1.5 GB: how much it was, not to be calculated with."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
