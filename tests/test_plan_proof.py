"""What plans compute and what verify makes of it.

Every generated plan gives the right result in random orders of execution and is proved right; and
what verify accepts of plans changed at random gives the right result, too.
"""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_simulator import Simulator, StuckError

import ringcomm
from ringcomm._C import plan as _plan
from ringcomm.plan import Plan, PlanError, Plans, Step, Transfer

ALGORITHMS = [
    ("all_reduce", "ring"),
    ("all_reduce", "direct"),
    ("all_reduce", "one_shot"),
    ("reduce_scatter", "ring"),
    ("reduce_scatter", "direct"),
    ("all_gather", "ring"),
    ("all_gather", "direct"),
    ("broadcast", "chain"),
    ("broadcast", "direct"),
    ("reduce", "chain"),
    ("reduce", "direct"),
    ("gather", "direct"),
    ("scatter", "direct"),
    ("all_to_all", "direct"),
    ("barrier", "dissemination"),
]
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
every_algorithm = pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)


def make(collective: str, algorithm: str, world_size: int, root: int = 0) -> Plans:
    function = getattr(ringcomm.plan, collective)
    if collective in ROOTED:
        return function(algorithm, world_size=world_size, root=root)
    return function(algorithm, world_size=world_size)


def is_right(plans: Plans, order: random.Random, *, buffered: bool) -> bool:
    """Carries plans out on random numbers, in a random order, and compares with what is promised.

    Chunks whose contents the collective leaves open begin as numbers that belong to no rank.
    """
    n, root, num_chunks = len(plans), plans.root, plans.num_chunks
    numbers = np.random.default_rng(order.getrandbits(32))
    inputs = numbers.integers(-(2**40), 2**40, (n, num_chunks, 3))
    total = inputs.sum(axis=0)
    outputs = [rank.copy() for rank in inputs]
    simulator = Simulator(list(plans), outputs, order, buffered=buffered)
    simulator.run()
    mine = range(n)
    match plans.collective:
        case "all_reduce":
            return all((out == total).all() for out in outputs)
        case "reduce_scatter":
            return all((outputs[r][r] == total[r]).all() for r in mine)
        case "reduce":
            return bool((outputs[root] == total).all())
        case "all_gather":
            return all((out[r] == inputs[r][r]).all() for out in outputs for r in mine)
        case "gather":
            return all((outputs[root][r] == inputs[r][r]).all() for r in mine)
        case "scatter":
            return all((outputs[r][r] == inputs[root][r]).all() for r in mine)
        case "broadcast":
            return all((out == inputs[root]).all() for out in outputs)
        case "all_to_all":
            return all(
                (outputs[j][i * n + j] == inputs[i][i * n + j]).all() for i in mine for j in mine
            )
        case "barrier":
            return all(rank.known == set(mine) for rank in simulator.ranks)
    raise AssertionError(plans.collective)


@every_algorithm
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_result_is_right_in_any_order(collective, algorithm, data):
    world_size = data.draw(st.integers(1, 9), "world_size")
    root = data.draw(st.integers(0, world_size - 1), "root")
    order = random.Random(data.draw(st.integers(0, 2**32), "seed"))
    plans = make(collective, algorithm, world_size, root)
    assert is_right(plans, order, buffered=data.draw(st.booleans(), "buffered"))


Steps = list[tuple[list[Transfer], list[Transfer]]]


def swap_steps(ranks: list[Steps], rank: int, step: int, choose: random.Random) -> None:
    other = choose.randrange(len(ranks[rank]))
    ranks[rank][step], ranks[rank][other] = ranks[rank][other], ranks[rank][step]


def cut_step(ranks: list[Steps], rank: int, step: int, choose: random.Random) -> None:
    sends, recvs = ranks[rank][step]
    ranks[rank][step : step + 1] = choose.sample([(sends, []), ([], recvs)], 2)


def merge_steps(ranks: list[Steps], rank: int, step: int, choose: random.Random) -> None:
    sends, recvs = zip(*ranks[rank][step : step + 2], strict=True)
    ranks[rank][step : step + 2] = [([*chain(*sends)], [*chain(*recvs)])]


def drop_message(ranks: list[Steps], rank: int, step: int, choose: random.Random) -> None:
    """Drops a send and, at the peer, the receive that belongs to it."""
    if not (sends := ranks[rank][step][0]):
        return
    send = choose.choice(sends)
    same_pair = [(sends, t) for sends, _ in ranks[rank] for t in sends if t.peer == send.peer]
    position = next(i for i, (_, t) in enumerate(same_pair) if t is send)
    awaited = [(recvs, t) for _, recvs in ranks[send.peer] for t in recvs if t.peer == rank]
    for transfers, transfer in [same_pair[position], *awaited[position : position + 1]]:
        transfers.remove(transfer)


def flip_reduce(ranks: list[Steps], rank: int, step: int, choose: random.Random) -> None:
    recvs = ranks[rank][step][1]
    for i in choose.sample(range(len(recvs)), min(1, len(recvs))):
        t = recvs[i]
        recvs[i] = Transfer(t.peer, t.first_chunk, t.num_chunks, not t.reduce)


CHANGES = [swap_steps, cut_step, merge_steps, drop_message, flip_reduce]


def changed(plans: Plans, choose: random.Random) -> Plans:
    """The plans with one thing changed."""
    ranks = [[(step.sends, step.recvs) for step in plan.steps] for plan in plans]
    rank = choose.choice([rank for rank, steps in enumerate(ranks) if steps])
    choose.choice(CHANGES)(ranks, rank, choose.randrange(len(ranks[rank])), choose)
    return Plans(
        plans.collective,
        [Plan(plans.num_chunks, [Step(*step) for step in steps]) for steps in ranks],
        root=plans.root,
    )


@every_algorithm
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_verify_accepts_is_right_in_any_order(collective, algorithm, data):
    world_size = data.draw(st.integers(2, 6), "world_size")
    root = data.draw(st.integers(0, world_size - 1), "root")
    order = random.Random(data.draw(st.integers(0, 2**32), "seed"))
    plans = make(collective, algorithm, world_size, root)
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        plans = changed(plans, order)
    try:
        plans.verify()
    except PlanError as error:
        if "deadlock" in str(error):
            with pytest.raises(StuckError):
                is_right(plans, order, buffered=False)
        return
    assert is_right(plans, order, buffered=data.draw(st.booleans(), "buffered"))


@every_algorithm
def test_every_size_to_64_and_every_root_is_proved(collective, algorithm):
    for world_size in range(1, 65):
        for root in range(world_size if collective in ROOTED else 1):
            make(collective, algorithm, world_size, root).verify()


LARGEST = [
    ("ALL_REDUCE", _plan.ring_all_reduce, 4096),
    ("ALL_REDUCE", _plan.direct_all_reduce, 4096),
    ("ALL_REDUCE", _plan.one_shot_all_reduce, 1000),  # one chunk goes from everyone to everyone
    ("REDUCE_SCATTER", _plan.ring_reduce_scatter, 3001),
    ("REDUCE_SCATTER", _plan.direct_reduce_scatter, 3001),
    ("ALL_GATHER", _plan.ring_all_gather, 2048),
    ("ALL_GATHER", _plan.direct_all_gather, 2048),
    ("ALL_TO_ALL", _plan.all_to_all, 4096),
]
LARGEST_ROOTED = [
    ("BROADCAST", _plan.chain_broadcast),
    ("BROADCAST", _plan.direct_broadcast),
    ("REDUCE", _plan.chain_reduce),
    ("REDUCE", _plan.direct_reduce),
    ("GATHER", _plan.gather),
    ("SCATTER", _plan.scatter),
]


def sampled(num_chunks: int) -> list[int]:
    return [0, num_chunks // 7, num_chunks // 2, num_chunks - 1]


@pytest.mark.parametrize(("collective", "generate", "world_size"), LARGEST)
def test_chunks_of_the_largest_groups_are_proved(collective, generate, world_size):
    _plan.verify_chunks(
        getattr(_plan.Collective, collective),
        world_size,
        lambda rank: generate(rank, world_size),
        sampled(generate(0, world_size).num_chunks),
    )


@pytest.mark.parametrize(("collective", "generate"), LARGEST_ROOTED)
@pytest.mark.parametrize(("world_size", "root"), [(100, 99), (1024, 0), (4096, 1365)])
def test_chunks_of_the_largest_groups_with_a_root_are_proved(
    collective, generate, world_size, root
):
    _plan.verify_chunks(
        getattr(_plan.Collective, collective),
        world_size,
        lambda rank: generate(rank, world_size, root),
        sampled(generate(0, world_size, root).num_chunks),
        root,
    )


@pytest.mark.parametrize("world_size", [100, 1024, 4096])
def test_barriers_of_the_largest_groups_are_proved(world_size):
    ringcomm.plan.barrier(world_size=world_size).verify()
