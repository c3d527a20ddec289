"""Ranks and hosts that die or are cut off: the others go on without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts import Local, Network
from hosts.conftest import needs_hosts
from ringcomm.stores import local_store

SCRIPT = Path(__file__).with_name("going_on.py")


@pytest.mark.parametrize("links", ["ucx", "gloo"])
@pytest.mark.parametrize(
    "deaths",
    [
        [[4], [3], [0]],  # the last of their hosts, or not; then the first of all
        [[2], [0], [1, 4]],  # leaders of others, whose hosts then have others
        [[2, 3], [0]],  # a host; then the leader of the only one with several ranks
        [[0, 2], [4], [1]],  # two leaders at once
    ],
)
def test_deaths_on_hosts_by_name(deaths: list[list[int]], links: str) -> None:
    store = local_store()
    living = [0, 1, 2, 3, 4]
    with Local(3) as local:
        env = {"RINGCOMM_LINKS": links, "STORE_PORT": str(store.port)}
        job = local.start(SCRIPT, "30", placement=[0, 0, 1, 1, 2], env=env)
        for dying in [[], *deaths]:
            for rank in dying:
                job.kill(rank)
            living = [rank for rank in living if rank not in dying]
            for rank in living:
                heard = job.hear(rank)
                # A second death may be seen after the first.
                while isinstance(heard, list) and len(heard) > len(living):
                    heard = job.hear(rank)
                assert heard == living


@needs_hosts
@pytest.mark.parametrize("fault", ["no power", "no cable"])
def test_a_host_that_is_gone(fault: str) -> None:
    """The store is on the other one; a rank that does not reach it raises, and soon."""
    with Network(2) as network:
        job = network.start(SCRIPT, "8", ranks_per_host=2)
        for rank in range(4):
            assert job.hear(rank) == [0, 1, 2, 3]
        if fault == "no power":
            network.power_off(1)
        else:
            network.cut(1)
        for rank in (0, 1):
            assert job.hear(rank) == [0, 1]
        if fault == "no cable":
            for rank in (2, 3):
                assert "the group's store does not answer" in job.hear(rank)
