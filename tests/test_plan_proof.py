"""What plans compute and what verify makes of it.

Every generated plan gives the right result in random orders of execution and is proved right; and
what verify accepts of plans changed at random gives the right result, too.
"""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
from compiled import tools
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_simulator import Simulator, StuckError

import ringcomm
from ringcomm.plan import Plan, PlanError, Plans, Step, Transfer
from ringcomm.plan.algorithms import ALGORITHMS, choose
from ringcomm.plan.plans import COLLECTIVES, ROOTED

NAMES = [(collective, name) for collective, names in ALGORITHMS.items() for name in names]
every_algorithm = pytest.mark.parametrize(("collective", "algorithm"), NAMES)


def hosts(collective: str, algorithm: str, world_size: int) -> list[int] | None:
    """Hosts of five ranks and one of what is left, for algorithms that look at hosts."""
    if not ALGORITHMS[collective][algorithm].two_level:
        return None
    full, left = divmod(world_size, 5)
    return [5] * full + [left] * (left > 0)


def make(collective: str, algorithm: str, world_size: int, root: int = 0) -> Plans:
    arguments = {"root": root} if collective in ROOTED else {}
    if ranks_per_host := hosts(collective, algorithm, world_size):
        arguments["ranks_per_host"] = ranks_per_host
    return getattr(ringcomm.plan, collective)(algorithm, world_size=world_size, **arguments)


def is_right(plans: Plans, order: random.Random, *, buffered: bool) -> bool:
    """Carries plans out on random numbers, in a random order, and compares with what is promised.

    Chunks whose contents the collective leaves open begin as numbers that belong to no rank.
    """
    n, root, num_chunks = len(plans), plans.root, plans.num_chunks
    own = [slice(r * num_chunks // n, (r + 1) * num_chunks // n) for r in range(n)]
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
            return all((outputs[r][own[r]] == total[own[r]]).all() for r in mine)
        case "reduce":
            return bool((outputs[root] == total).all())
        case "all_gather":
            return all((out[own[r]] == inputs[r][own[r]]).all() for out in outputs for r in mine)
        case "gather":
            return all((outputs[root][own[r]] == inputs[r][own[r]]).all() for r in mine)
        case "scatter":
            return all((outputs[r][own[r]] == inputs[root][own[r]]).all() for r in mine)
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


@every_algorithm
@pytest.mark.parametrize(("world_size", "root"), [(100, 99), (1024, 0), (3001, 1000)])
def test_chunks_of_the_largest_groups_are_proved(collective, algorithm, world_size, root):
    if algorithm == "one_shot" and world_size > 1024:
        pytest.skip("its one chunk goes from everyone to everyone")
    if collective == "barrier":
        make(collective, algorithm, world_size).verify()
        return
    root = root if collective in ROOTED else 0
    chosen = choose(
        collective, algorithm, world_size, root, hosts(collective, algorithm, world_size)
    )
    num_chunks = chosen.plan_of(0).num_chunks
    tools().verify_chunks(
        COLLECTIVES[collective],
        world_size,
        chosen.plan_of,
        [0, num_chunks // 7, num_chunks // 2, num_chunks - 1],
        root,
    )
