"""python -m ringcomm explain: a plan as a picture, what a lane makes of it, or how calls go."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

import ringcomm
from ringcomm.arguments import module, number, output_file, ranks_per_host
from ringcomm.cli import beside, choose
from ringcomm.cli.names import COLLECTIVES
from ringcomm.usage import FailedError, UsageError, refusing

SUFFIXES = (".html", ".svg", ".gif")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "collective",
        nargs="?",
        choices=COLLECTIVES,
        default="all_reduce",
        metavar="COLLECTIVE",
        help=f"{', '.join(COLLECTIVES)} (default: all_reduce)",
    )
    parser.add_argument("--world-size", type=number(1), default=5, help="(default: %(default)s)")
    parser.add_argument("--algorithm", help="a name that help(ringcomm.plan) lists")
    parser.add_argument(
        "--import",
        type=module,
        metavar="MODULE",
        help="a module or its file (.py) that registers algorithms",
    )
    parser.add_argument("--root", type=int, help="of a collective that has one")
    parser.add_argument(
        "--ranks-per-host",
        type=ranks_per_host,
        help="of plans for hosts, and of --choose: of each host, such as 3,2,2, or one number "
        "for all",
    )
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="draw what all ranks do in a lane, slice by slice, and whom they wait for (.svg); "
        "r is receive, red reduce, c copy, s send",
    )
    parser.add_argument(
        "--slices",
        type=number(1),
        help="of a timeline, of each chunk (default: 3)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        help="a page (.html), or for slides a drawing (.svg) or an animation (.gif) "
        "(default: COLLECTIVE.html, of a timeline COLLECTIVE.svg)",
    )
    choose.add_arguments(parser)
    beside.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Writes the picture and says where. Returns the exit code."""
    suffixes = (".svg",) if options.timeline else SUFFIXES
    output: Path = options.output or Path(f"{options.collective}{suffixes[0]}")
    try:
        with refusing():
            written = _write(options, output, suffixes)
    except ModuleNotFoundError as error:
        raise FailedError(
            f"{output.suffix} needs matplotlib: pip install matplotlib ({error})"
        ) from error
    except (OSError, ringcomm.plan.PlanError) as error:
        raise FailedError(str(error)) from error
    if written:
        print(f"wrote {written.resolve()}", file=sys.stderr if options.json else sys.stdout)
    return 0


def _write(options: argparse.Namespace, output: Path, suffixes: Sequence[str]) -> Path | None:
    """Returns where the picture is, if one was wanted.

    Raises:
        ValueError: the options do not fit together.
    """
    if options.choose:
        choose.run(options)
        return None
    choose.refuse_without(options)
    generate = getattr(ringcomm.plan, options.collective)
    given = {name: getattr(options, name) for name in ("algorithm", "root", "ranks_per_host")}
    arguments = {name: value for name, value in given.items() if value is not None}
    for name, value in arguments.items():
        if name == "ranks_per_host" and options.beside is not None:
            continue  # of the network, whatever the collective
        if name not in inspect.signature(generate).parameters:
            raise UsageError(f"{options.collective} has no {name}, got {value}")
    if options.slices is not None and not options.timeline:
        raise UsageError(f"--slices is of a --timeline, got {options.slices}")
    if options.beside is not None:
        return beside.write(options, output)
    beside.refuse_without(options)
    plans = generate(world_size=options.world_size, **arguments)
    if different := plans.bitwise_difference():
        print(f"not the same bits on all ranks: {different}", file=sys.stderr)
    if output.suffix not in suffixes:
        one_of = "one of " if len(suffixes) > 1 else ""
        raise UsageError(f"-o must end in {one_of}{', '.join(suffixes)}, got {output}")
    if options.timeline:
        from ringcomm.explain import timeline

        timeline.draw(plans, options.slices or 3, output)
        return output
    from ringcomm.explain.sums import lines

    for line in lines(plans):
        print(line)
    if output.suffix == ".html":
        from ringcomm.explain.page import page

        output.write_text(page(plans), encoding="utf-8")
    else:
        from ringcomm.explain.drawing import draw

        draw(plans, output)
    return output
