"""Which links between hosts are slow, by made counts whose truth is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

import ringcomm.slow_links as module
from ringcomm.connections import Connection
from ringcomm.slow_links import Meter, Traffic, links_between, lost, slow_links, usual_rate

FAST = 125e6  # bytes per second
TICK = 0.004
ELAPSED = 60.0
NBYTES = 100_000_000


def address(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def ring(
    host_of: Mapping[int, int],
    rates: Mapping[tuple[int, int], float] | None = None,
    nbytes: int = NBYTES,
    addresses: Mapping[int, str] | None = None,
    elapsed: float = ELAPSED,
) -> dict[int, Traffic]:
    """Each rank sends to the next one, at `rates` of pairs of ranks or else at FAST."""
    ranks = sorted(host_of)
    made: dict[int, list[Connection]] = {rank: [] for rank in ranks}
    addresses = addresses or {rank: address(rank) for rank in ranks}
    for rank, other in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
        here, there = (addresses[rank], 40000 + rank), (addresses[other], 29000)
        seconds = nbytes / (rates or {}).get((rank, other), FAST)
        made[rank].append(Connection(here, there, nbytes, seconds))
        made[other].append(Connection(there, here, 0, 0.0))
    return {rank: Traffic(elapsed, own) for rank, own in made.items()}


def named(traffic: Mapping[int, Traffic], host_of: Mapping[int, int]) -> list[tuple[int, int]]:
    found = slow_links(links_between(traffic, host_of), host_of)
    return [(each.source, each.target) for each in found]


HOSTS = {rank: rank for rank in range(4)}


def test_a_slow_link_is_named_and_what_it_costs() -> None:
    links = links_between(ring(HOSTS, {(2, 3): FAST / 10}), HOSTS)
    (slow,) = slow_links(links, HOSTS)
    assert (slow.source, slow.target, slow.sent, slow.elapsed) == (2, 3, NBYTES, ELAPSED)
    assert slow.rate == pytest.approx(FAST / 10) and usual_rate(slow, links) == pytest.approx(FAST)
    assert lost(slow, links) == pytest.approx(9 * NBYTES / FAST)


def test_equal_links_are_not_slow() -> None:
    assert named(ring(HOSTS), HOSTS) == []
    assert named(ring(HOSTS, dict.fromkeys(itertools.pairwise(range(4)), 1e6)), HOSTS) == []


def test_of_two_hosts_the_directions_are_compared() -> None:
    hosts = {0: 0, 1: 1}
    assert named(ring(hosts, {(1, 0): FAST / 3}), hosts) == [(1, 0)]
    assert named(ring(hosts), hosts) == []


def test_what_a_slow_link_slows_is_not_named() -> None:
    """Acknowledgements of 1 to 2 come back over 2's slow link."""
    assert named(ring(HOSTS, {(2, 3): FAST / 10, (1, 2): FAST / 5}), HOSTS) == [(2, 3)]
    six = {rank: rank for rank in range(6)}
    assert named(ring(six, {(1, 2): FAST / 10, (4, 5): FAST / 8}), six) == [(1, 2), (4, 5)]


def test_what_costs_little_or_carried_little_is_not_named() -> None:
    slow = {(2, 3): FAST / 10}
    assert named(ring(HOSTS, slow, elapsed=1000.0), HOSTS) == []
    assert named(ring(HOSTS, slow, nbytes=1_000_000, elapsed=1.0), HOSTS) == []
    assert named(ring(HOSTS, {(2, 3): FAST / 1.4}), HOSTS) == []


def test_ticks_of_the_kernel_name_no_link() -> None:
    """What takes less than a tick is counted as none or as one."""
    draw = random.Random(1)
    for _ in range(1000):
        traffic = ring(HOSTS)
        for rank, own in traffic.items():
            steps = [own.connections[0].sent / FAST / 20] * 20
            ticks = sum(int(each / TICK + draw.random()) for each in steps) * TICK
            sent = [
                Connection(each.here, each.there, each.sent // 50, ticks / 50 if each.sent else 0.0)
                for each in own.connections
            ]
            traffic[rank] = Traffic(1.0, sent)
        assert named(traffic, HOSTS) == []


def test_connections_of_one_host_share_its_link() -> None:
    hosts = {0: 0, 1: 0, 2: 1, 3: 1}
    made: dict[int, list[Connection]] = {rank: [] for rank in hosts}
    for rank, other in ((0, 2), (1, 3), (2, 0), (3, 1)):
        here, there = (address(hosts[rank]), 100 + rank), (address(hosts[other]), 100 + other)
        rate = FAST / 8 if rank > 1 else FAST / 2
        made[rank].append(Connection(here, there, NBYTES, NBYTES / rate))
    traffic = {rank: Traffic(ELAPSED, own) for rank, own in made.items()}
    links = links_between(traffic, hosts)
    assert sorted((each.source, each.sent) for each in links) == [(0, 2 * NBYTES), (2, 2 * NBYTES)]
    assert [each.rate for each in slow_links(links, hosts)] == [pytest.approx(FAST / 4)]


def test_ends_that_no_rank_has_are_left_out() -> None:
    """The store's, data loaders', those of translated addresses, and of a machine with itself."""
    traffic = ring(HOSTS, {(2, 3): FAST / 10})
    elsewhere = Connection((address(0), 5000), ("192.0.2.1", 443), NBYTES, 50.0)
    traffic[0] = Traffic(ELAPSED, [*traffic[0].connections, elsewhere])
    assert named(traffic, HOSTS) == [(2, 3)]
    for loopback in ("127.0.0.1", "::1", "fe80::1%lo"):
        is_left_out = loopback != "fe80::1%lo"
        alike = dict.fromkeys(HOSTS, loopback)
        found = links_between(ring(HOSTS, addresses=alike), HOSTS)
        assert (found == []) == is_left_out
    assert named(ring(HOSTS, {(2, 3): FAST / 10}), dict.fromkeys(HOSTS, 0)) == []


def test_a_meter_says_what_was_sent_since(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ((address(0), 1), (address(1), 2))
    counts: list[list[tuple[int, float]]] = [
        [(1000, 1.0)], [(1500, 1.25)], [], [(1200, 1.0)], [(100, 0.5)],
    ]  # fmt: skip
    monkeypatch.setattr(
        module, "connections", lambda: [Connection(*ends, *each) for each in counts.pop(0)]
    )
    meter = Meter()
    first = meter.read()
    assert first.elapsed > 0, "since the process began"
    assert [(each.sent, each.seconds) for each in first.connections] == [(1000, 1.0)]
    second = meter.read()
    assert 0 <= second.elapsed < first.elapsed + 10
    assert [(each.sent, each.seconds) for each in second.connections] == [(500, 0.25)]
    assert meter.read().connections == []
    assert meter.read().connections[0].sent == 1200, "a new one between the same ends"
    assert meter.read().connections[0].sent == 100, "and one that has sent less"


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> list[Connection]:
        raise FileNotFoundError(2, "No such file or directory", str(Path("/proc/self/fd")))

    monkeypatch.setattr(module, "connections", hidden)
    assert Meter().read() == Traffic(0.0, [])
