"""Hierarchical plans, proved for many grids and carried out on numbers in random orders."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from compiled import tools
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_simulator import Simulator

import ringcomm
from ringcomm._C import plan as _plan
from ringcomm.plan import LINKS, Network, Plans
from ringcomm.plan.plans import COLLECTIVES

HIERARCHICAL = ("all_reduce", "reduce_scatter", "all_gather")
ALGORITHMS = ("hierarchical", "hierarchical_direct")


each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def make(
    collective: str, hosts: int, ranks_per_host: int, algorithm: str = "hierarchical"
) -> Plans:
    return on_hosts(collective, [ranks_per_host] * hosts, algorithm)


def on_hosts(collective: str, sizes: list[int], algorithm: str = "hierarchical") -> Plans:
    generate = getattr(ringcomm.plan, collective)
    return generate(algorithm, world_size=sum(sizes), ranks_per_host=sizes)


def test_one_number_is_that_of_every_host():
    plans = ringcomm.plan.all_reduce("hierarchical", world_size=6, ranks_per_host=2)
    assert plans == make("all_reduce", 3, 2)


@each_algorithm
@pytest.mark.parametrize("collective", HIERARCHICAL)
def test_every_grid_of_up_to_64_ranks_is_proved(collective, algorithm):
    for hosts in range(1, 65):
        for ranks_per_host in range(1, 64 // hosts + 1):
            make(collective, hosts, ranks_per_host, algorithm).verify()


@each_algorithm
@pytest.mark.parametrize("collective", HIERARCHICAL)
@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(512, 8), (64, 64), (3, 333), (1000, 2)])
def test_chunks_of_the_largest_grids_are_proved(collective, hosts, ranks_per_host, algorithm):
    n = hosts * ranks_per_host
    verify_chunks(collective, [rank // ranks_per_host for rank in range(n)], algorithm)


def verify_chunks(collective: str, host_of: list[int], algorithm: str) -> None:
    setting = _plan.Setting(len(host_of), host_of=host_of)
    n = len(host_of)
    tools().verify_chunks(
        COLLECTIVES[collective],
        n,
        lambda rank: _plan.generate(COLLECTIVES[collective], algorithm, rank, setting),
        [0, n // 7, n // 2, n - 1],
    )


PLACEMENTS = {
    "hosts of 1 to 44": [host for host in range(44) for _ in range(host + 1)],
    "in turn on 128 hosts": [rank % 128 for rank in range(1024)],
    "in turn on 7 hosts": [rank % 7 for rank in range(1024)],
    "scattered": random.Random(0).choices(range(100), k=1024),
}


@each_algorithm
@pytest.mark.parametrize("collective", HIERARCHICAL)
@pytest.mark.parametrize("host_of", PLACEMENTS.values(), ids=PLACEMENTS)
def test_chunks_of_any_placement_are_proved(collective, host_of, algorithm):
    verify_chunks(collective, host_of, algorithm)


@each_algorithm
@pytest.mark.parametrize("collective", HIERARCHICAL)
@settings(max_examples=50, deadline=None)
@given(host_of=st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_any_placement_is_proved(collective, algorithm, host_of):
    setting = _plan.Setting(len(host_of), host_of=host_of)
    kind = COLLECTIVES[collective]
    plans = [_plan.generate(kind, algorithm, r, setting) for r in range(len(host_of))]
    Plans(collective, plans).verify()


@each_algorithm
@pytest.mark.parametrize("collective", HIERARCHICAL)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_numbers_are_right_in_any_order(collective, algorithm, data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4), "sizes")
    order = random.Random(data.draw(st.integers(0, 2**32), "seed"))
    plans = on_hosts(collective, sizes, algorithm)
    n = len(plans)
    inputs = np.random.default_rng(order.getrandbits(32)).integers(-(2**40), 2**40, (n, n, 3))
    outputs = [rank.copy() for rank in inputs]
    Simulator(list(plans), outputs, order, buffered=data.draw(st.booleans(), "buffered")).run()
    for rank, output in enumerate(outputs):
        if collective == "all_reduce":
            assert (output == inputs.sum(axis=0)).all()
        elif collective == "reduce_scatter":
            assert (output[rank] == inputs.sum(axis=0)[rank]).all()
        else:
            assert all((output[other] == inputs[other][other]).all() for other in range(n))


def test_only_a_part_crosses_hosts():
    """2(H-1)/H of an L-th of the buffer per rank, in 2(H+L-2) steps: 6 hosts of 4 ranks."""
    for plan in make("all_reduce", 6, 4):
        assert len(plan.steps) == 2 * (6 + 4 - 2)
    for rank, plan in enumerate(make("all_reduce", 6, 4)):
        sends = [send for step in plan.steps for send in step.sends]
        across = [send for send in sends if send.peer // 4 != rank // 4]
        assert sum(send.num_chunks for send in across) == 2 * (6 - 1)
        assert sum(send.num_chunks for send in sends) == 2 * (24 - 1)
        assert len({send.peer for send in sends}) == 2


def test_direct_exchange_adds_a_host_at_once() -> None:
    """2H steps: 6 hosts of 4 ranks, of which each adds three others' inputs in the first."""
    for rank, plan in enumerate(make("all_reduce", 6, 4, "hierarchical_direct")):
        assert len(plan.steps) == 2 * 6
        others = [r for r in range(rank // 4 * 4, rank // 4 * 4 + 4) if r != rank]
        assert [recv.peer for recv in plan.steps[0].recvs if recv.reduce] == others


def test_table_names_its_four_phases():
    printed = str(make("all_reduce", 2, 3)).splitlines()
    assert printed[0] == "all_reduce (hierarchical): 6 ranks, 6 chunks, 6 steps"
    firsts = {line: printed[i + 1].split()[0] for i, line in enumerate(printed) if "hosts" in line}
    assert firsts == {
        "reduce-scatter inside hosts": "0",
        "reduce-scatter across hosts": "2",
        "all-gather across hosts": "3",
        "all-gather inside hosts": "4",
    }
    assert "all-gather across hosts" not in str(make("all_reduce", 1, 3))


def test_table_of_unequal_hosts_has_idle_ranks():
    printed = str(on_hosts("all_reduce", [3, 2])).splitlines()
    assert printed[0] == "all_reduce (hierarchical): 5 ranks, 5 chunks, 6 steps"
    rows = [line.split() for line in printed]
    assert [row[1] for row in rows if row[:1] == ["1"]] == ["0", "1", "2"]
    assert "2 3 chunk 0 -> rank 0 chunk 1 <- rank 0 reduce" in map(" ".join, rows)


def test_unequal_hosts_are_simulated():
    """1,024 ranks, all of which do something different, on a network that has other hosts."""
    plans = on_hosts("all_reduce", [8] * 124 + [4, 4, 6, 6, 6, 6])
    network = Network(LINKS["nvlink4"], LINKS["ndr"], ranks_per_host=8)
    result = plans.simulate(2**20, network)
    assert result.ranks_simulated == 1024
    assert result.num_messages == sum(len(step.sends) for plan in plans for step in plan.steps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 6}, "algorithm 'hierarchical' needs ranks_per_host"),
        (
            {"world_size": 6, "ranks_per_host": 4},
            "ranks_per_host must divide world_size, which is 6, or have a number for each host, "
            "got 4",
        ),
        (
            {"world_size": 6, "ranks_per_host": [3, 2]},
            "ranks_per_host must add up to world_size, which is 6, got [3, 2]",
        ),
        (
            {"world_size": 6, "ranks_per_host": [6, 0]},
            "ranks_per_host must be between 1 and 6, got 0",
        ),
        ({"world_size": 6, "ranks_per_host": 0}, "ranks_per_host must be between 1 and 6, got 0"),
        (
            {"world_size": 6, "ranks_per_host": 2.0},
            "ranks_per_host must be an integer, got 2.0",
        ),
    ],
)
def test_wrong_hosts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ringcomm.plan.all_reduce("hierarchical", **arguments)


def test_other_algorithms_have_no_hosts():
    with pytest.raises(ValueError, match=r"^ranks_per_host=2 has no meaning for 'ring'$"):
        ringcomm.plan.all_gather("ring", world_size=4, ranks_per_host=2)
