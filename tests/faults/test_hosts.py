"""Hosts and connections fail in the middle of collectives: every surviving rank names the rank."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network
from hosts.conftest import needs_hosts
from hosts.job import Job

from faults.record import Record, times

SCRIPT = Path(__file__).with_name("works_until.py")
PLACEMENT = [0, 0, 1, 1]
SOON = 5.0  # seconds, on a machine with a core for each rank
PATIENCE = 20.0  # on this one

Strike = Callable[[Network, Job], float]


def killed(rank: int) -> Strike:
    return lambda _, job: job.kill(rank)


def kill_host(_: Network, job: Job) -> float:
    return job.kill_host(1)


def stop_host(_: Network, job: Job) -> float:
    return min([job.stop(rank) for rank in range(4) if PLACEMENT[rank] == 1])


def timed(strike: Callable[[Network], None]) -> Strike:
    def strikes(network: Network, _: Job) -> float:
        began = time.monotonic()
        strike(network)
        return began

    return strikes


# What happens, and to which ranks; those survive that are not among them, or all.
FAULTS: dict[str, tuple[Strike, set[int], bool]] = {
    "a rank is killed": (killed(3), {3}, False),
    "the first rank of a host is killed": (killed(2), {2}, False),
    "the first rank of all is killed": (killed(0), {0}, False),
    "a host's ranks are killed": (kill_host, {2, 3}, False),
    "a host stands still": (stop_host, {2, 3}, False),
    "a host has no power": (timed(lambda network: network.power_off(1)), {2, 3}, False),
    "a cable is pulled": (timed(lambda network: network.cut(1)), {2, 3}, True),
    "packets to a host are lost": (timed(lambda network: network.drop(1, "in")), {2, 3}, True),
    "packets of a host are lost": (timed(lambda network: network.drop(1, "out")), {2, 3}, True),
}


def names(text: str, ranks: set[int], hosts: set[int]) -> bool:
    """Whether the text says that one of the ranks, on one of the hosts, will not answer."""
    return any(f"rank {rank} will not answer" in text for rank in ranks) and any(
        f"host rc-host{host}" in text for host in hosts
    )


@needs_hosts
@pytest.mark.parametrize("links", ["ucx", "gloo"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.replace(" ", "-"))
def test_hosts(record: Record, fault: str, links: str) -> None:
    strike, victims, live_on = FAULTS[fault]
    draw = random.Random(f"{fault} {links}")
    seconds: list[float] = []
    unnamed: list[str] = []
    held: dict[str, list[int]] = defaultdict(list)
    for _ in range(record.scale(1, 50)):
        with Network(2) as network:
            job = network.start(SCRIPT, placement=PLACEMENT, env={"RINGCOMM_LINKS": links})
            for rank in range(4):
                assert job.hear(rank) == "works"
            time.sleep(draw.uniform(0, 0.05))
            struck = strike(network, job)
            for rank in [rank for rank in range(4) if live_on or rank not in victims]:
                said = job.hear(rank, PATIENCE)
                seconds.append(said["at"] - struck)
                others = victims if rank not in victims else set(range(4)) - victims
                if not names(said["text"], others, {PLACEMENT[other] for other in others}):
                    unnamed.append(f"rank {rank}: {said['text']}")
                for what in ("descriptors", "threads", "shared"):
                    held[what].append(said[what])
    assert not unnamed
    assert max(held["shared"]) == 0
    record.write_row(
        f"{links}: {fault}",
        until_a_survivor_raised=times(seconds),
        most_held_after_leaving={what: max(numbers) for what, numbers in held.items()},
    )
    assert max(seconds) < (SOON if record.long else PATIENCE)


@needs_hosts
def test_a_job_that_stands_still_goes_on() -> None:
    """Longer than a host may be silent."""
    with Network(2) as network:
        job = network.start(SCRIPT, placement=PLACEMENT)
        for rank in range(4):
            assert job.hear(rank) == "works"
        for rank in range(4):
            job.stop(rank)
        time.sleep(6)
        for rank in range(4):
            job.resume(rank)
        time.sleep(1)
        assert job.running() == [0, 1, 2, 3]
        assert all(len(job.reports(rank)) == 1 for rank in range(4))
