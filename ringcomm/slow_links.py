"""How fast links between hosts are, and which are slow, by what the kernels count of them."""

from __future__ import annotations

import ipaddress
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ringcomm.connections import Connection, End, connections
from ringcomm.processes import parent_and_start

# A link is named only if it is much slower than half of the others are, the group has lost so much
# of its time to it, and this is no accident. The kernel counts time in ticks, of which so long ones
# are usual; their number varies as that of random events does. What carries less than so many bytes
# says little of a link.
_MUCH_SLOWER = 1.5
_LEAST_SHARE = 0.02
_TICK = 0.004  # seconds
_DEVIATIONS = 4  # standard ones
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Traffic:
    """What a rank has sent since its last such report.

    Attributes:
        elapsed: seconds since then, or since the process began.
        connections: of its process; what they have sent in this time.
    """

    elapsed: float
    connections: list[Connection]


@dataclass(frozen=True)
class Link:
    """A way from one host to another, as it was used.

    Attributes:
        source: the rank whose connection was in use for longest.
        target: the rank that it sent to.
        sent: bytes of all ranks of the one host to those of the other.
        seconds: that it was in use.
        elapsed: seconds that were looked at.
    """

    source: int
    target: int
    sent: int
    seconds: float
    elapsed: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.sent / self.seconds


class Meter:
    """Says what this process has sent since it was last asked."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before: dict[tuple[End, End], Connection] = {}

    def read(self) -> Traffic:
        """Nothing where there is no /proc."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            since = _start_of_process() if self._since is None else self._since
            open_now = connections()
        except OSError:
            return Traffic(0.0, [])
        sent = [self._since_then(each) for each in open_now]
        self._since = now
        self._before = {(each.here, each.there): each for each in open_now}
        return Traffic(now - since, sent)

    def _since_then(self, now: Connection) -> Connection:
        before = self._before.get((now.here, now.there))
        if before is None or before.sent > now.sent:  # it is a new one
            return now
        sent, seconds = now.sent - before.sent, now.seconds - before.seconds
        return Connection(now.here, now.there, sent, seconds)


def links_between(traffic: Mapping[int, Traffic], host_of: Mapping[int, object]) -> list[Link]:
    """One for each pair of hosts and direction that was used.

    Args:
        traffic: of each rank.
        host_of: the host of each rank.
    """
    rank_at = {
        (each.here, each.there): rank for rank, own in traffic.items() for each in own.connections
    }
    between: dict[tuple[object, object], list[Link]] = {}
    for rank, own in traffic.items():
        for each in own.connections:
            other = rank_at.get((each.there, each.here))
            if other is None or host_of[rank] == host_of[other] or _is_loopback(each):
                continue
            if each.sent >= _LEAST_BYTES and each.seconds > 0:
                link = Link(rank, other, each.sent, each.seconds, own.elapsed)
                between.setdefault((host_of[rank], host_of[other]), []).append(link)
    found = []
    for alike in between.values():
        # They are in use at the same time, and share the rate.
        longest = max(alike, key=lambda each: each.seconds)
        found.append(replace(longest, sent=sum(each.sent for each in alike)))
    return found


def usual_rate(link: Link, links: Sequence[Link]) -> float:
    """Bytes per second, the median of the other links; 0 if there are none."""
    others = [each.rate for each in links if each is not link]
    return statistics.median(others) if others else 0.0


def lost(link: Link, links: Sequence[Link]) -> float:
    """Seconds that it would have been in use less at the usual rate."""
    usual = usual_rate(link, links)
    return link.seconds - link.sent / usual if usual else 0.0


def slow_links(links: Sequence[Link], host_of: Mapping[int, object]) -> list[Link]:
    """Those that are slow beyond doubt. At most one is named of those that have a host in common.

    A slow link delays what comes back on it, too: acknowledgements of what the host receives. So
    other links of this host are slow as well, and say nothing of themselves.
    """
    found: list[Link] = []
    known: set[object] = set()
    for link in sorted(links, key=lambda each: each.rate):
        hosts = {host_of[link.source], host_of[link.target]}
        if _is_slow(link, links) and not hosts & known:
            found.append(link)
            known |= hosts
    return found


def _is_slow(link: Link, links: Sequence[Link]) -> bool:
    seconds = lost(link, links)
    ticks = (2 * link.seconds - seconds) / _TICK  # of the link, and at the usual rate
    return (
        link.rate * _MUCH_SLOWER < usual_rate(link, links)
        and seconds > _LEAST_SHARE * link.elapsed
        and seconds > _DEVIATIONS * _TICK * math.sqrt(ticks)
    )


def _is_loopback(connection: Connection) -> bool:
    """Such addresses name other hosts' ranks, too."""
    return ipaddress.ip_address(connection.there[0].partition("%")[0]).is_loopback


def _start_of_process() -> float:
    """In seconds since the boot."""
    return parent_and_start(os.getpid())[1] / os.sysconf("SC_CLK_TCK")
