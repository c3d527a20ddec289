"""ringcomm.plan.simulate against closed forms, an independent computation of times, and itself."""

from __future__ import annotations

import re
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringcomm
from ringcomm.plan import LINKS, Link, Network, Plan, PlanError, Plans, Step, Transfer, simulate
from ringcomm.plan.algorithms import ALGORITHMS

MICROSECOND = 2.0**-20  # about; a power of two, so that sums are exact
GB = 2.0**30


def seconds(algorithm: str, world_size: int, nbytes: float, network: Network, **more) -> float:
    return simulate(
        "all_reduce", algorithm, world_size=world_size, nbytes=nbytes, network=network, **more
    ).seconds


@pytest.mark.parametrize("world_size", [2, 8, 64, 1024, 16384])
def test_ring_is_exact(world_size):
    """2(n-1) latencies and 2(n-1)/n of the bytes, at powers of two without any rounding."""
    network = Network(Link(latency=MICROSECOND, bandwidth=GB))
    expected = 2 * (world_size - 1) * MICROSECOND + 2 * (world_size - 1) / world_size * 2**20 / GB
    assert seconds("ring", world_size, 2**20, network) == expected


@settings(max_examples=50, deadline=None)
@given(
    world_size=st.integers(1, 40),
    nbytes=st.integers(0, 2**34),
    latency=st.floats(0, 1),
    overhead=st.floats(0, 1),
    bandwidth=st.floats(1, 1e12),
    reduce_bandwidth=st.floats(1, 1e12),
)
def test_ring_of_any_numbers(world_size, nbytes, latency, overhead, bandwidth, reduce_bandwidth):
    network = Network(Link(latency, bandwidth, overhead), reduce_bandwidth=reduce_bandwidth)
    steps, share = world_size - 1, Fraction(world_size - 1, world_size)
    expected = (
        2 * steps * (Fraction(latency) + Fraction(overhead))
        + 2 * share * nbytes / Fraction(bandwidth)
        + share * nbytes / Fraction(reduce_bandwidth)
    )
    assert seconds("ring", world_size, nbytes, network) == pytest.approx(float(expected), rel=1e-9)


def test_worked_out_by_hand():
    """4 ranks, 4 MB, 10 us, 1 GB/s: 6 steps of 10 us and 1 MB, which takes 1 ms."""
    network = Network(Link(10e-6, 1e9))
    assert seconds("ring", 4, 4e6, network) == pytest.approx(6 * (10e-6 + 1e-3), rel=1e-12)
    assert seconds("direct", 4, 4e6, network) == pytest.approx(2 * (10e-6 + 3e-3), rel=1e-12)
    assert seconds("one_shot", 4, 4e6, network) == pytest.approx(10e-6 + 12e-3, rel=1e-12)
    # 2 hosts of 2, across ten times slower: two steps inside with 2 MB, two across with 1 MB.
    network = Network(Link(10e-6, 1e9), Link(100e-6, 1e8), ranks_per_host=2)
    by_hand = 2 * (10e-6 + 2e-3) + 2 * (100e-6 + 10e-3)
    assert seconds("hierarchical", 4, 4e6, network) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("world_size", [2, 16, 1024])
def test_algorithms_of_logarithmically_many_steps_are_exact(world_size):
    """What the headers in csrc/plan claim, at powers of two without any rounding."""
    network = Network(Link(latency=MICROSECOND, bandwidth=GB))
    log = world_size.bit_length() - 1
    whole, share = 2**20 / GB, (world_size - 1) / world_size * 2**20 / GB
    cases = {
        ("all_reduce", "halving_doubling"): 2 * (log * MICROSECOND + share),
        ("all_reduce", "recursive_doubling"): log * (MICROSECOND + whole),
        ("reduce_scatter", "halving_doubling"): log * MICROSECOND + share,
        ("all_gather", "halving_doubling"): log * MICROSECOND + share,
        ("all_gather", "bruck"): log * MICROSECOND + share,
        ("all_to_all", "bruck"): log * (MICROSECOND + whole / 2 / world_size),  # of n*n chunks
    }
    for (collective, algorithm), expected in cases.items():
        result = simulate(
            collective, algorithm, world_size=world_size, nbytes=2**20, network=network
        )
        assert result.seconds == expected, algorithm


def test_slices_make_a_double_tree_faster_than_a_chain():
    """In few latencies, and with all links busy, as in a chain."""
    network = Network(Link(latency=MICROSECOND, bandwidth=GB))

    def sliced(algorithm: str) -> float:
        return simulate(
            "broadcast",
            algorithm,
            world_size=1024,
            nbytes=2**24,
            network=network,
            slice_nbytes=2**16,
        ).seconds

    assert 2**24 / GB < sliced("double_tree") < sliced("chain")


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(collective, name) for collective, names in ALGORITHMS.items() for name in names],
)
def test_every_algorithm_is_simulated_on_1024_ranks(collective, algorithm):
    network = Network(LINKS["nvlink4"], LINKS["ndr"], ranks_per_host=8)
    result = simulate(collective, algorithm, world_size=1024, nbytes=2**20, network=network)
    assert result.seconds > 0
    assert result.num_messages >= 1023


def test_a_gap_in_the_pipeline():
    """Three ranks in a line; the middle one sends on each slice when it has come, not before.

    Slices of 2, 2 and 1 KB at 1 KB/s, 0.5 s latency: they leave rank 0 at 0, 2, 4 and are at rank 1
    at 2.5, 4.5, 5.5; from there they leave at 2.5, 4.5, 6.5 and are at rank 2 by 5, 7, 8.
    """
    line = ringcomm.plan.broadcast("chain", world_size=3)
    result = line.simulate(5e3, Network(Link(0.5, 1e3)), slice_nbytes=2e3)
    assert result.seconds == 8
    assert (result.num_messages, result.ranks_simulated) == (6, 3)


def test_a_port_serves_in_order():
    """Two ranks send 1 s to a third at once: the second message is received after the first."""
    sender = Plan(1, [Step(sends=[Transfer(0, 0)])])
    receiver = Plan(1, [Step(recvs=[Transfer(1, 0, reduce=True), Transfer(2, 0, reduce=True)])])
    plans = Plans("reduce", [receiver, sender, sender])
    network = Network(Link(latency=0.25, bandwidth=1.0))
    assert plans.simulate(1, network).seconds == 2.25
    added = Network(Link(latency=0.25, bandwidth=1.0), reduce_bandwidth=4.0)
    assert plans.simulate(1, added).seconds == 2.75


def all_times(
    plans: Plans, chunk_nbytes: Fraction, link: Link, reduce_bandwidth: float
) -> Fraction:
    """The longest path through the plans, for rings and lines: where no port is ever busy.

    Computed the other way round than by events: the end of a step is asked for, and it asks for
    what it needs.
    """
    known: dict[tuple[int, int], Fraction] = {}
    latency, overhead = Fraction(link.latency), Fraction(link.overhead)
    sent_in = {
        (rank, send.peer, step): index
        for rank, plan in enumerate(plans)
        for index, (step, send) in enumerate(
            (i, send) for i, one in enumerate(plan.steps) for send in one.sends
        )
    }
    step_of = {(rank, peer, index): step for (rank, peer, step), index in sent_in.items()}

    def begin(rank: int, step: int) -> Fraction:
        return end(rank, step - 1) if step > 0 else Fraction(0)

    def end(rank: int, step: int) -> Fraction:
        if (rank, step) in known:
            return known[rank, step]
        moved = overhead + chunk_nbytes / Fraction(link.bandwidth)
        plan = plans[rank].steps[step]
        latest = begin(rank, step) + (moved if plan.sends else 0)
        received = sum(len(one.recvs) for one in plans[rank].steps[:step])
        for offset, recv in enumerate(plan.recvs):
            sender_step = step_of[recv.peer, rank, received + offset]
            latest = max(latest, begin(recv.peer, sender_step) + latency + moved)
            if recv.reduce:
                latest += chunk_nbytes / Fraction(reduce_bandwidth)
        known[rank, step] = latest
        return latest

    return max(
        (end(rank, step) for rank, plan in enumerate(plans) for step in range(len(plan.steps))),
        default=Fraction(0),
    )


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_agrees_with_the_longest_path(data):
    world_size = data.draw(st.integers(1, 9))
    root = data.draw(st.integers(0, world_size - 1))
    plans = data.draw(
        st.sampled_from(
            [
                ringcomm.plan.all_reduce("ring", world_size=world_size),
                ringcomm.plan.reduce_scatter("ring", world_size=world_size),
                ringcomm.plan.broadcast("chain", world_size=world_size, root=root),
                ringcomm.plan.reduce("chain", world_size=world_size, root=root),
            ]
        )
    )
    times = st.floats(0, 1e3)
    link = Link(data.draw(times), data.draw(st.floats(1, 1e6)), data.draw(times))
    reduce_bandwidth = data.draw(st.floats(1, 1e6))
    nbytes = data.draw(st.integers(0, 10**6))
    result = plans.simulate(nbytes, Network(link, reduce_bandwidth=reduce_bandwidth))
    expected = all_times(plans, Fraction(nbytes, plans.num_chunks), link, reduce_bandwidth)
    assert result.seconds == pytest.approx(float(expected), rel=1e-9)


def test_results_do_not_depend_on_earlier_simulations():
    fast, slow = Network(Link(0, GB)), Network(Link(0, GB / 2))
    assert seconds("ring", 8, 2**20, slow) == 2 * seconds("ring", 8, 2**20, fast)
    assert seconds("direct", 8, 2**20, fast) == seconds("ring", 8, 2**20, fast)


RING = {"world_size": 4, "nbytes": 1, "network": Network(Link(0, 1))}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nbytes": -1}, "nbytes must be a number from 0, got -1.000000"),
        ({"slice_nbytes": 0}, "slice_nbytes must be above 0, got 0.000000"),
        ({"network": Network(Link(-1, 1))}, "inside.latency must be finite and at least 0, got -1"),
        ({"network": Network(Link(inf, 1))}, "inside.latency must be finite and at least 0, got"),
        ({"network": Network(Link(0, 0))}, "inside.bandwidth must be above 0, got 0"),
        (
            {"network": Network(Link(0, 1), ranks_per_host=3)},
            "ranks_per_host must divide world_size, which is 4, got 3",
        ),
        (
            {"network": Network(Link(0, 1), ranks_per_host=4, nics_per_host=3)},
            "nics_per_host must divide ranks_per_host, which is 4, got 3",
        ),
        ({"world_size": 0}, "world_size must be between 1 and 262144, got 0"),
        ({"world_size": 2**30}, "world_size must be between 1 and 262144, got 1073741824"),
        ({"nbytes": 2**40, "slice_nbytes": 1}, "larger slices are fewer"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        simulate("all_reduce", "ring", **{**RING, **arguments})


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"^collective must be one of .*, got 'allreduce'$"):
        simulate("allreduce", "ring", **RING)
    with pytest.raises(ValueError, match=r"^algorithm of broadcast must be .*, got 'ring'$"):
        simulate("broadcast", "ring", **RING)


def test_plans_that_do_not_match_are_refused():
    lonely = Plans("all_reduce", [Plan(1, [Step(sends=[Transfer(1, 0)])]), Plan(1, [])])
    with pytest.raises(PlanError, match="rank 1 does not receive what it is sent"):
        lonely.simulate(1, Network(Link(0, 1)))
    waits = [
        Plan(1, [Step(recvs=[Transfer(1 - r, 0)]), Step(sends=[Transfer(1 - r, 0)])])
        for r in (0, 1)
    ]
    with pytest.raises(PlanError, match="deadlock"):
        Plans("all_reduce", waits).simulate(1, Network(Link(0, 1)))
