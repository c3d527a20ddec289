"""Ranks of `python -m ringcomm tune` on several hosts: they measure the network between them."""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

import ringcomm
from ringcomm.plan.network import Link
from ringcomm.usage import UsageError

TIMEOUT = timedelta(seconds=120)
TURNS = 5
SMALL = 20  # all-reduces of one element in a turn; of many there is one
LONG = 0.2  # seconds of an all-reduce that shows the bandwidth
MOST = 64 << 20  # bytes of it


def measure() -> tuple[Link, list[str]]:
    """What is between the hosts of the ranks that a launcher has started.

    The first rank of the first host and that of each other host do all-reduces, in which both send
    what they have, pair after pair. Each of many small ones in a row takes the latency, a large one
    what the bandwidth allows. The slowest pair counts.

    Returns:
        The link, the same on all ranks, and the names of the hosts.

    Raises:
        UsageError: all ranks are on one host.
    """
    os.environ["RINGCOMM_TUNING"] = "off"
    ringcomm.init(TIMEOUT)
    topology = ringcomm.topology()
    first, *others = (host.ranks[0] for host in topology.hosts)
    if not others:
        world_size = dist.get_world_size()
        ringcomm.destroy_process_group()
        raise UsageError(
            f"all {world_size} ranks are on one host: start them on several to measure the "
            "network, or without a launcher to measure this host"
        )
    latency, seconds_per_byte = 0.0, 0.0
    for other in others:
        pair = ringcomm.new_group([first, other], timeout=TIMEOUT)
        if dist.get_rank() in (first, other):
            latency = max(latency, _seconds(pair, 1, SMALL, TURNS))
            seconds_per_byte = max(seconds_per_byte, _seconds_per_byte(pair))
        ringcomm.barrier()
    slowest = torch.tensor([latency, seconds_per_byte], dtype=torch.float64)
    ringcomm.all_reduce(slowest, ringcomm.ReduceOp.MAX)
    latency, seconds_per_byte = slowest.tolist()
    return Link(latency, 1 / seconds_per_byte), [host.name for host in topology.hosts]


def is_first_of_its_host() -> bool:
    """Whether this rank is the first one of its host among the ranks that measure."""
    topology = ringcomm.topology()
    return topology.hosts[topology.own].ranks[0] == dist.get_rank()


def _seconds(group: ProcessGroup, count: int, calls: int, turns: int) -> float:
    """Seconds of one of several all-reduces in a row, of so many float32.

    The least of the turns counts: it is the time when nothing else uses the network. Both ranks get
    the same.
    """
    tensor = torch.zeros(count)
    taken = torch.empty(1 + turns, dtype=torch.float64)
    for turn in range(len(taken)):
        ringcomm.barrier(group)
        begin = time.perf_counter()
        for _ in range(calls):
            ringcomm.all_reduce(tensor, group=group)
        taken[turn] = (time.perf_counter() - begin) / calls
    ringcomm.all_reduce(taken, ringcomm.ReduceOp.MAX, group)
    return float(taken[1:].min())  # the first one connects


def _seconds_per_byte(group: ProcessGroup) -> float:
    nbytes = 1 << 20
    while nbytes < MOST and (seconds := _seconds(group, nbytes // 4, 1, 1)) < LONG:
        nbytes = min(MOST, nbytes * max(2, math.floor(LONG / seconds)))
    return _seconds(group, nbytes // 4, 1, TURNS) / nbytes
