"""Ranks of one machine that play hosts by name, for tests that were written for one host.

    RINGCOMM_TEST_RANKS_PER_HOST=2 RINGCOMM_LINKS=gloo pytest tests/clients

puts each two ranks that follow each other on a host of their own; with 1 each rank has its own.
Ranks of different hosts share no memory: all that they say to each other goes over the links.
"""

from __future__ import annotations

import os

RANKS_PER_HOST = "RINGCOMM_TEST_RANKS_PER_HOST"


def environment_of(rank: int) -> dict[str, str]:
    """What this rank's process is to have in its environment; nothing where no hosts are played."""
    played = os.environ.get(RANKS_PER_HOST)
    if played is None:
        return {}
    links = os.environ.get("RINGCOMM_LINKS", "auto")
    return {"RINGCOMM_HOSTID": f"host{rank // int(played)}", "RINGCOMM_LINKS": links}
