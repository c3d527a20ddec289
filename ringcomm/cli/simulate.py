"""python -m ringcomm simulate: how long collectives take on a network that is not there."""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from ringcomm import _library
from ringcomm.arguments import module, nbytes, number, output_file
from ringcomm.cli import names
from ringcomm.cli.whole import print_in_parts
from ringcomm.units import readable_nbytes, readable_seconds
from ringcomm.usage import refusing

if TYPE_CHECKING:
    from ringcomm.plan import Link

_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
_STEP = 4  # from size to size in a range


def link(text: str) -> Link:
    """As `Link.parse`."""
    _library.need()
    from ringcomm.plan import Link

    try:
        return Link.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def bandwidth(text: str) -> float:
    """370GB/s as bytes per second."""
    try:
        found = float(text.removesuffix("GB/s")) * 1e9
    except ValueError:
        found = 0.0
    if not text.endswith("GB/s") or not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(
            f"must be a bandwidth above 0 such as 370GB/s, got {text!r}"
        )
    return found


def sizes(text: str) -> list[int]:
    """1K,1M as bytes, and 1K..1G as the sizes between them, each four times the one before."""
    found = []
    for part in text.split(","):
        first, is_range, last = part.partition("..")
        found.append(nbytes(first))
        if not is_range:
            continue
        end = nbytes(last)
        if end < found[-1]:
            raise argparse.ArgumentTypeError(f"must be a range from less to more, got {part!r}")
        while found[-1] * _STEP <= end:
            found.append(found[-1] * _STEP)
        if found[-1] != end:
            found.append(end)
    return found


def _world_sizes(text: str) -> list[int]:
    return [number(1)(part) for part in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Simulates the plans of a collective on a network, transfer by transfer, and marks the "
        "cheapest. Links are "
        + ", ".join(f"{name} ({what})" for name, what in names.LINKS.items())
        + ": bandwidth in each direction by data sheet, latency as in NCCL's tuning model, and no "
        "overhead per message, so plans with many small messages look better than they are."
    )
    parser.add_argument(
        "--collective",
        choices=_COLLECTIVES,
        default="all_reduce",
        metavar="NAME",
        help=f"{', '.join(_COLLECTIVES)} (default: all_reduce)",
    )
    parser.add_argument(
        "--algorithm",
        type=lambda text: text.split(","),
        help="comma-separated names that help(ringcomm.plan) lists (default: all, and those "
        "imported)",
    )
    parser.add_argument(
        "--import",
        type=module,
        metavar="MODULE",
        help="a module that registers algorithms, by its name or file (.py)",
    )
    parser.add_argument(
        "--world-size", type=_world_sizes, default=[64], help="such as 8,64,1024 (default: 64)"
    )
    parser.add_argument(
        "--nbytes",
        type=sizes,
        default="1K..1G",
        help="such as 1K,1M or 1K..1G, on each rank (default: 1K..1G)",
    )
    parser.add_argument(
        "--link",
        type=link,
        help="inside hosts: a name, or latency:bandwidth[:overhead] such as 5us:25GB/s:1us "
        "(default: nvlink4)",
    )
    parser.add_argument("--across", type=link, help="between hosts, likewise (default: ndr)")
    parser.add_argument(
        "--ranks-per-host", type=number(1), default=8, help="(default: %(default)s)"
    )
    parser.add_argument(
        "--nics-per-host", type=number(1), help="that its ranks share (default: one per rank)"
    )
    for limit, does in (("--egress", "sends"), ("--ingress", "receives")):
        parser.add_argument(
            limit,
            type=bandwidth,
            default=math.inf,
            metavar="GB/s",
            help=f"that a rank {does} at most, of all ranks of its host together; messages share "
            "it fairly, such as 370GB/s (default: messages take turns at the rank's port)",
        )
    parser.add_argument(
        "--slice",
        type=nbytes,
        metavar="NBYTES",
        help="pieces of a chunk that follow each other (default: whole chunks)",
    )
    parser.add_argument("--plot", type=output_file, metavar="FILE", help="as .png, .svg or .pdf")
    parser.add_argument(
        "--json", action="store_true", help="for machines: one JSON list, times in seconds"
    )


@dataclass(frozen=True)
class Row:
    """The times of one size on one number of ranks, in seconds by algorithm."""

    world_size: int
    nbytes: int
    seconds: dict[str, float]

    @property
    def cheapest(self) -> str:
        """The algorithm that takes the least time."""
        return min(self.seconds, key=self.seconds.__getitem__)


def run(options: argparse.Namespace) -> int:
    """Prints the table, and draws it if asked. Returns the exit code."""
    from ringcomm.bench import plot
    from ringcomm.plan import LINKS, registry
    from ringcomm.plan.algorithms import ALGORITHMS

    options.link = options.link or LINKS["nvlink4"]
    options.across = options.across or LINKS["ndr"]
    options.algorithm = options.algorithm or [
        *ALGORITHMS[options.collective],
        *registry.names(options.collective),
    ]
    if options.plot:
        plot.check(options.plot)
    with refusing():
        rows = [
            _row(options, world_size, size)
            for world_size in options.world_size
            for size in options.nbytes
        ]
    if options.json:
        print(json.dumps([asdict(row) | {"cheapest": row.cheapest} for row in rows]))
    else:
        print(_title(options))
        print_in_parts(functools.partial(_table, rows), options.algorithm)
        print("* the cheapest")
    if options.plot:
        _draw(options, rows)
        if not options.json:
            print(f"wrote {options.plot.resolve()}")
    return 0


def _row(options: argparse.Namespace, world_size: int, size: int) -> Row:
    from ringcomm.plan import Network, simulate

    network = Network(
        inside=options.link,
        across=options.across,
        ranks_per_host=min(options.ranks_per_host, world_size),
        nics_per_host=options.nics_per_host,
        egress=options.egress,
        ingress=options.ingress,
    )
    return Row(
        world_size,
        size,
        {
            algorithm: simulate(
                options.collective,
                algorithm,
                world_size=world_size,
                nbytes=size,
                network=network,
                slice_nbytes=options.slice or math.inf,
            ).seconds
            for algorithm in options.algorithm
        },
    )


def _table(rows: Sequence[Row], algorithms: Sequence[str]) -> Table:
    """The times of these algorithms; the cheapest of all of them is marked."""
    table = Table("ranks", "nbytes", *algorithms, box=None)
    for column in table.columns:
        column.justify = "right"
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        cells = []
        for algorithm in algorithms:
            text = readable_seconds(row.seconds[algorithm])
            cells.append(f"[bold]{text}*[/]" if algorithm == row.cheapest else f"{text} ")
        is_last = following is not None and following.world_size != row.world_size
        table.add_row(str(row.world_size), readable_nbytes(row.nbytes), *cells, end_section=is_last)
    return table


def described(one: Link) -> str:
    """A link by its numbers."""
    overhead = f" + {one.overhead * 1e6:g} µs a message" if one.overhead else ""
    return f"{one.latency * 1e6:g} µs, {one.bandwidth / 1e9:g} GB/s{overhead}"


def _title(options: argparse.Namespace) -> str:
    limits = "".join(
        f", {name} {limit / 1e9:g} GB/s"
        for name, limit in (("egress", options.egress), ("ingress", options.ingress))
        if limit < math.inf
    )
    return (
        f"{options.collective}, simulated\n"
        f"hosts of {options.ranks_per_host}: {described(options.link)}{limits}\n"
        f"between hosts: {described(options.across)}"
    )


def _draw(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(options.world_size), 4), layout="constrained")
    axes = figure.subplots(1, len(options.world_size), squeeze=False, sharey=True)[0]
    for world_size, one in zip(options.world_size, axes, strict=True):
        chosen = [row for row in rows if row.world_size == world_size]
        for algorithm in options.algorithm:
            one.plot(
                [row.nbytes for row in chosen],
                [row.seconds[algorithm] for row in chosen],
                marker="o",
                ms=3,
                label=algorithm,
            )
        one.set_xscale("log", base=2)
        one.set_yscale("log")
        one.set_title(f"{world_size} ranks")
        one.set_xlabel("nbytes on each rank")
        one.grid(alpha=0.3)
    axes[0].set_ylabel("time, s")
    axes[0].legend()
    figure.suptitle(_title(options), fontsize=9)
    figure.savefig(options.plot)
