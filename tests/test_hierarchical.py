"""Hierarchical plans, proved for many grids and carried out on numbers in random orders."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_simulator import Simulator

import ringcomm
from ringcomm._C import plan as _plan
from ringcomm.plan import Plans

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
GENERATORS = {
    "ALL_REDUCE": _plan.hierarchical_all_reduce,
    "REDUCE_SCATTER": _plan.hierarchical_reduce_scatter,
    "ALL_GATHER": _plan.hierarchical_all_gather,
}


def make(collective: str, hosts: int, ranks_per_host: int) -> Plans:
    function = getattr(ringcomm.plan, collective)
    world_size = hosts * ranks_per_host
    return function("hierarchical", world_size=world_size, ranks_per_host=ranks_per_host)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_grid_of_up_to_64_ranks_is_proved(collective):
    for hosts in range(1, 65):
        for ranks_per_host in range(1, 64 // hosts + 1):
            make(collective, hosts, ranks_per_host).verify()


@pytest.mark.parametrize("collective", GENERATORS)
@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(512, 8), (64, 64), (3, 333), (1000, 2)])
def test_chunks_of_the_largest_grids_are_proved(collective, hosts, ranks_per_host):
    n = hosts * ranks_per_host
    _plan.verify_chunks(
        getattr(_plan.Collective, collective),
        n,
        lambda rank: GENERATORS[collective](rank, n, ranks_per_host),
        [0, n // 7, n // 2, n - 1],
    )


@pytest.mark.parametrize("collective", COLLECTIVES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_numbers_are_right_in_any_order(collective, data):
    hosts, ranks_per_host = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    order = random.Random(data.draw(st.integers(0, 2**32), "seed"))
    plans = make(collective, hosts, ranks_per_host)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 6}, "algorithm 'hierarchical' needs ranks_per_host"),
        (
            {"world_size": 6, "ranks_per_host": 4},
            "ranks_per_host must divide world_size, which is 6, got 4",
        ),
        ({"world_size": 6, "ranks_per_host": 0}, "ranks_per_host must be between 1 and 6, got 0"),
        (
            {"world_size": 6, "ranks_per_host": 2.0},
            "ranks_per_host must be an integer, got 2.0",
        ),
    ],
)
def test_wrong_hosts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        ringcomm.plan.all_reduce("hierarchical", **arguments)


def test_other_algorithms_have_no_hosts():
    with pytest.raises(ValueError, match=r"^ranks_per_host=2 has no meaning for 'ring'$"):
        ringcomm.plan.all_gather("ring", world_size=4, ranks_per_host=2)
