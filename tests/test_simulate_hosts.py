"""The simulation of many ranks on hosts: of ranks that do the same only one is simulated."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringcomm
from ringcomm.plan import LINKS, Link, Network, Plan, Plans, Step, Transfer, simulate


@st.composite
def symmetric_plans(draw, hosts: int, ranks_per_host: int) -> list[Plan]:
    """Plans that are each other's shifts over hosts, or over hosts and ranks, and compute nothing.

    A message goes so many hosts and ranks further, and the same shifted messages are received.
    """
    n = hosts * ranks_per_host
    same_for_all = draw(st.booleans())
    message = st.tuples(
        st.integers(0, hosts - 1), st.integers(0, ranks_per_host - 1), st.integers(1, 3)
    )
    plans: list[list[Step]] = [[] for _ in range(n)]
    for _ in range(draw(st.integers(1, 3))):
        common = draw(st.lists(message, max_size=4))
        of_column = [
            common if same_for_all else draw(st.lists(message, max_size=3))
            for _ in range(ranks_per_host)
        ]
        sends: list[list[Transfer]] = [[] for _ in range(n)]
        recvs: list[list[Transfer]] = [[] for _ in range(n)]
        adds = draw(st.booleans())
        for host in range(hosts):
            for local in range(ranks_per_host):
                for further, along, num_chunks in of_column[local]:
                    to = (host + further) % hosts * ranks_per_host + (
                        local + along
                    ) % ranks_per_host
                    rank = host * ranks_per_host + local
                    if to != rank:
                        sends[rank].append(Transfer(to, 0, num_chunks))
                        recvs[to].append(Transfer(rank, 0, num_chunks, adds))
        for steps, send, recv in zip(plans, sends, recvs, strict=True):
            steps.append(Step(send, recv))
    return [Plan(3, steps) for steps in plans]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_one_rank_stands_for_all_to_the_last_bit(data):
    """Plans that are the same but for an empty step at one rank's end are simulated in full.

    There are few different times, so that many things happen at once.
    """
    hosts, ranks_per_host = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    n = hosts * ranks_per_host
    kind = data.draw(st.sampled_from(["any", "ring", "direct", "one_shot", "hierarchical"]))
    if kind == "any":
        plans = data.draw(symmetric_plans(hosts, ranks_per_host))
    else:
        more = {"ranks_per_host": ranks_per_host} if kind == "hierarchical" else {}
        plans = list(ringcomm.plan.all_reduce(kind, world_size=n, **more))
    times, bandwidths = st.sampled_from([0.0, 1.0, 2.0, 0.7]), st.sampled_from([1.0, 2.0, 0.3, inf])
    link = st.builds(Link, times, bandwidths, times)
    network = Network(
        data.draw(link),
        data.draw(link),
        ranks_per_host=ranks_per_host,
        nics_per_host=data.draw(st.sampled_from([None, 1, 2 - ranks_per_host % 2])),
        reduce_bandwidth=data.draw(bandwidths),
    )
    nbytes, slice_nbytes = data.draw(st.integers(0, 9)), data.draw(st.sampled_from([inf, 1, 0.7]))
    last = Plan(plans[-1].num_chunks, [*plans[-1].steps, Step()])
    few = Plans("all_reduce", plans).simulate(nbytes, network, slice_nbytes=slice_nbytes)
    in_full = Plans("all_reduce", [*plans[:-1], last])
    all_of_them = in_full.simulate(nbytes, network, slice_nbytes=slice_nbytes)
    assert few.seconds == all_of_them.seconds
    assert few.num_messages == all_of_them.num_messages
    assert few.ranks_simulated <= ranks_per_host
    assert all_of_them.ranks_simulated == n


def test_ties_are_broken_alike_on_all_hosts():
    """3 hosts of 4 with 2 cards: two messages are at a card at once, of 1 s and of 3 s.

    The one from the next host comes before the one from the host after that, on every host, so that
    rank 0 of a host has its own after 4 s, and then takes 3 s to send what rank 3 waits for.
    """

    def plan(rank: int) -> Plan:
        host, local = divmod(rank, 4)
        one, two = (host + 1) % 3 * 4, (host + 2) % 3 * 4  # that many hosts further
        first, then = {
            0: (Step([Transfer(one, 0)], [Transfer(two, 0)]), Step([Transfer(host * 4 + 3, 0, 3)])),
            1: (Step([], [Transfer(one + 2, 0, 3)]), Step()),
            2: (Step([Transfer(two + 1, 0, 3)]), Step()),
            3: (Step(), Step([], [Transfer(host * 4, 0, 3)])),
        }[local]
        return Plan(3, [first, then])

    network = Network(Link(0, 1.0), ranks_per_host=4, nics_per_host=2)
    plans = [plan(rank) for rank in range(12)]
    in_full = [*plans[:-1], Plan(3, [*plans[-1].steps, Step()])]
    for some, simulated in ((plans, 4), (in_full, 12)):
        result = Plans("all_reduce", some).simulate(3, network)
        assert (result.seconds, result.ranks_simulated) == (7, simulated)


def test_consecutive_ranks_share_a_card():
    """Of 2 hosts of 4 with 2 cards each, ranks 0 and 1 share one, ranks 0 and 2 do not."""

    def both_send(other: int) -> float:
        send, recv = (
            lambda peer: Step(sends=[Transfer(peer, 0)]),
            lambda peer: Step(recvs=[Transfer(peer, 0)]),
        )
        of_rank = {0: send(4), 4: recv(0), other: send(4 + other), 4 + other: recv(other)}
        plans = [Plan(1, [of_rank[rank]] if rank in of_rank else []) for rank in range(8)]
        network = Network(Link(), Link(0, 1.0), ranks_per_host=4, nics_per_host=2)
        return Plans("all_reduce", plans).simulate(1, network).seconds

    assert [both_send(other) for other in (1, 2, 3)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("algorithm", "simulated"), [("ring", 8), ("direct", 8), ("hierarchical", 1)]
)
def test_large_groups_on_hosts(algorithm, simulated):
    network = Network(LINKS["nvlink4"], LINKS["ndr"], ranks_per_host=8)
    result = simulate("all_reduce", algorithm, world_size=4096, nbytes=2**30, network=network)
    assert result.ranks_simulated == simulated
    per_rank = {"ring": 2 * 4095, "direct": 2 * 4095, "hierarchical": 2 * (512 + 8 - 2)}
    assert result.num_messages == 4096 * per_rank[algorithm]


def test_ring_of_16384_ranks_in_hosts():
    """Each chunk passes every link, once in each half: 2047 of the slow ones, or 2048."""
    network = Network(LINKS["nvlink4"], LINKS["ndr"], ranks_per_host=8)
    result = simulate("all_reduce", "ring", world_size=16384, nbytes=0, network=network)
    hops = 2 * 16383
    across = (hops + 7) // 8
    expected = across * 14e-6 + (hops - across) * 3.4e-6
    assert result.seconds == pytest.approx(expected, rel=1e-9)
    assert result.num_messages == 16384 * 2 * 16383


def test_sharing_a_card_costs_bandwidth():
    def across(nics):
        network = Network(Link(), Link(0, 2.0**30), ranks_per_host=8, nics_per_host=nics)
        result = simulate(
            "all_reduce", "hierarchical", world_size=16, nbytes=2**30, network=network
        )
        return result.seconds

    # 2 hosts: each of two steps across moves a 16th of the buffer per rank.
    assert across(None) == across(8) == 2 / 16
    assert across(2) == 4 * across(8)
    assert across(1) == 8 * across(8)
