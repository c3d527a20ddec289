"""A script whose ranks check every collective, in groups that span hosts and groups that do not.

    python checks.py --backend ring [--sizes quick|all] [--only NAME ...]

What arrives is compared with what a rank finds by itself from all ranks' inputs, bit for bit where
arithmetic leaves no choice. Sums that are rounded are compared with the exact ones, and reported
to the test as digests, for they must have the same bits on all ranks. A rank reports
{"wrong": [...], "cases": number by check, "digests": by case}; its status is 1 if some are wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hosts.cases import LARGE, Compared, Findings, Place
from hosts.check_messages import any_source, barrier, messages
from hosts.check_moves import all_gather, all_to_all, broadcast, gather, objects, scatter
from hosts.check_overlap import asynchronous, coalesced, groups_at_once
from hosts.check_reductions import all_reduce, all_reduce_rounded, reduce, reduce_scatter
from hosts.report import report

TIMEOUT = timedelta(seconds=120)

# (check, what) that a backend refuses or gets wrong, found by trying.
NOT_OFFERED: dict[str, set[tuple[str, str]]] = {
    "ring": set(),
    "gloo": {
        ("op", "PREMUL_SUM"),
        ("dtype", "bool"),  # it adds them as bytes
        ("all_to_all", "list"),  # of unequal parts
    },
}

CHECKS: list[Callable[[Place], Iterator[Compared]]] = [
    all_reduce,
    all_reduce_rounded,
    reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    gather,
    scatter,
    all_to_all,
    messages,
    any_source,
    barrier,
    objects,
    asynchronous,
    coalesced,
]


def partition_of(world_size: int, hosts: list[str]) -> dict[str, list[int]]:
    """Groups' names and ranks: hosts, one rank of each host, all but one rank, backwards, alone."""
    by_host = {
        host: [rank for rank in range(world_size) if hosts[rank] == host]
        for host in dict.fromkeys(hosts)
    }
    groups = {f"host {host}": ranks for host, ranks in by_host.items() if len(ranks) > 1}
    fewest = min(len(ranks) for ranks in by_host.values())
    if len(by_host) > 1 and len(by_host) < world_size:
        for local in range(fewest):
            groups[f"column {local}"] = [ranks[local] for ranks in by_host.values()]
    if world_size > 2:
        groups["all but the first"] = list(range(1, world_size))
    groups["the last alone"] = [world_size - 1]
    return groups


def places_of(options: argparse.Namespace) -> list[Place]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"host of {rank}", os.environ.get("RINGCOMM_HOSTID", socket.gethostname()))
    hosts = [store.get(f"host of {other}").decode() for other in range(world_size)]
    not_offered = NOT_OFFERED[options.backend]

    def offers(check: str, what: str) -> bool:
        return (check, what) not in not_offered

    def place(name: str, group: Any, ranks: list[int], large: list[int]) -> Place:
        return Place(name, group, ranks, large, offers, random.Random(name))

    places = [place("the world", dist.group.WORLD, list(range(world_size)), LARGE[options.sizes])]
    for name, ranks in partition_of(world_size, hosts).items():
        group = dist.new_group(ranks, TIMEOUT, backend=options.backend)
        if rank in ranks:
            places.append(place(name, group, ranks, []))
    return places


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=NOT_OFFERED, required=True)
    parser.add_argument("--sizes", choices=LARGE, default="quick")
    parser.add_argument("--only", nargs="*", help="names of checks")
    options = parser.parse_args()
    if options.backend == "ring":
        import ringcomm  # noqa: F401  (registers it)
    dist.init_process_group(options.backend, timeout=TIMEOUT)
    findings = Findings()
    places = places_of(options)
    for check in CHECKS:
        if options.only and check.__name__ not in options.only:
            continue
        for place in places:
            began = time.monotonic()
            for found in check(place):
                findings.add(check.__name__, place, found)
            print(f"{check.__name__} in {place.name}: {time.monotonic() - began:.2f} s", flush=True)
    groups_at_once(places, findings)
    dist.destroy_process_group()
    report(
        {
            "wrong": findings.wrong,
            "cases": findings.cases,
            "digests": findings.digests,
        }
    )
    for line in findings.wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if findings.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
