"""python -m ringcomm explain --beside: two algorithms on one simulated network."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ringcomm.arguments import nbytes, number
from ringcomm.cli.simulate import described, link
from ringcomm.cli.whole import print_in_parts
from ringcomm.units import readable_nbytes

if TYPE_CHECKING:
    from ringcomm.explain.times import Timed
    from ringcomm.plan import Network, Plans

SUFFIXES = (".html", ".svg")
_OPTIONS = ("nbytes", "link", "across", "nics_per_host", "slice", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --beside and what belongs to it."""
    group = parser.add_argument_group(
        "two algorithms on one clock",
        "A page, a drawing (.svg) or numbers: when each step is done on a network that is "
        "simulated. Links are named as those of the command simulate.",
    )
    group.add_argument("--beside", metavar="ALGORITHM", help="what --algorithm is compared with")
    group.add_argument("--nbytes", type=nbytes, help="of the buffer on each rank (default: 1M)")
    group.add_argument("--link", type=link, help="inside hosts (default: nvlink4)")
    group.add_argument(
        "--across",
        type=link,
        help="between hosts, with --choose, too (default: ndr, or there 10 Gbit/s Ethernet)",
    )
    group.add_argument(
        "--nics-per-host", type=number(1), help="that its ranks share (default: one per rank)"
    )
    group.add_argument(
        "--slice",
        type=nbytes,
        metavar="NBYTES",
        help="pieces of a chunk that follow each other (default: whole chunks)",
    )
    group.add_argument(
        "--json",
        action="store_true",
        default=None,
        help="for machines, with --choose, too; times are in seconds, and a picture is written "
        "only with -o",
    )


def refuse_without(options: argparse.Namespace) -> None:
    """Raises ValueError if an option is given that belongs to --beside."""
    for name in _OPTIONS:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is of --beside, which is not given")


def write(options: argparse.Namespace, output: Path) -> Path | None:
    """Prints the steps of both and writes the picture to `output`, if that is asked for.

    Returns where the picture is.
    """
    from ringcomm.explain.times import timed

    if options.timeline:
        raise ValueError("--timeline shows one algorithm, got --beside, too")
    if output.suffix not in SUFFIXES:
        raise ValueError(f"with --beside -o must end in one of {', '.join(SUFFIXES)}, got {output}")
    network = _network(options)
    size = options.nbytes or 1 << 20
    both = []
    for algorithm in (options.algorithm, options.beside):
        plans = _plans(options, algorithm)
        plans.verify()
        both.append(timed(plans, size, network, slice_nbytes=options.slice or math.inf))
    text = f"{readable_nbytes(size)} on each rank, simulated; {_described(network)}"
    written = output if options.output or not options.json else None
    if written:
        _draw(both, text, written)
    _print(options, both, network, size, text)
    return written


def _plans(options: argparse.Namespace, algorithm: str | None) -> Plans:
    """The plans of an algorithm, which learns of hosts if it is one for hosts."""
    from ringcomm import plan
    from ringcomm.plan.algorithms import ALGORITHMS

    arguments = {"world_size": options.world_size}
    if options.root is not None:
        arguments["root"] = options.root
    known = ALGORITHMS[options.collective].get(algorithm or "")
    if known and known.two_level and options.ranks_per_host is not None:
        arguments["ranks_per_host"] = options.ranks_per_host
    plans: Plans = getattr(plan, options.collective)(algorithm, **arguments)
    return plans


def _network(options: argparse.Namespace) -> Network:
    from ringcomm.plan import LINKS, Network

    hosts = options.ranks_per_host
    if isinstance(hosts, list):
        if len(set(hosts)) > 1:
            raise ValueError(
                "a simulated network has as many ranks on every host, got --ranks-per-host "
                + ",".join(map(str, hosts))
            )
        if sum(hosts) != options.world_size:
            raise ValueError(
                f"--ranks-per-host must add up to {options.world_size} ranks, got {sum(hosts)}"
            )
        hosts = hosts[0]
    return Network(
        inside=options.link or LINKS["nvlink4"],
        across=options.across or LINKS["ndr"],
        ranks_per_host=hosts,
        nics_per_host=options.nics_per_host,
    )


def _described(network: Network) -> str:
    inside = described(network.inside)
    if network.ranks_per_host is None or network.across is None:
        return f"one host: {inside}"
    across = described(network.across)
    return f"hosts of {network.ranks_per_host}: {inside}; between hosts: {across}"


def _draw(both: list[Timed], text: str, output: Path) -> None:
    if output.suffix == ".html":
        from ringcomm.explain.beside import beside_page

        output.write_text(beside_page(both, text), encoding="utf-8")
    else:
        from ringcomm.explain.drawing import draw_beside

        draw_beside(both, output)


def _print(
    options: argparse.Namespace, both: list[Timed], network: Network, size: int, text: str
) -> None:
    from ringcomm.explain.beside import record, table

    if options.json:
        document = {
            "collective": options.collective,
            "world_size": options.world_size,
            "nbytes": size,
            "network": {
                name: value for name, value in asdict(network).items() if name != "reduce_bandwidth"
            },
            "algorithms": [record(one) for one in both],
        }
        print(json.dumps(document))
    else:
        print(f"{options.collective} of {options.world_size} ranks\n{text}\n")
        print_in_parts(table, both)
