"""ringcomm.plan: the plans of all ranks as a sequence and as a table, and what is refused."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest

import ringcomm
from ringcomm.plan import Plan, PlanError, Plans, Step, Transfer
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.plans import COLLECTIVES


def test_table_of_the_ring():
    assert str(ringcomm.plan.all_reduce("ring", world_size=4)) == dedent("""\
        all_reduce (ring): 4 ranks, 4 chunks, 6 steps

        step  rank  sends              receives

        reduce-scatter
           0     0  chunk 3 -> rank 1  chunk 2 <- rank 3  reduce
           0     1  chunk 0 -> rank 2  chunk 3 <- rank 0  reduce
           0     2  chunk 1 -> rank 3  chunk 0 <- rank 1  reduce
           0     3  chunk 2 -> rank 0  chunk 1 <- rank 2  reduce

           1     0  chunk 2 -> rank 1  chunk 1 <- rank 3  reduce
           1     1  chunk 3 -> rank 2  chunk 2 <- rank 0  reduce
           1     2  chunk 0 -> rank 3  chunk 3 <- rank 1  reduce
           1     3  chunk 1 -> rank 0  chunk 0 <- rank 2  reduce

           2     0  chunk 1 -> rank 1  chunk 0 <- rank 3  reduce
           2     1  chunk 2 -> rank 2  chunk 1 <- rank 0  reduce
           2     2  chunk 3 -> rank 3  chunk 2 <- rank 1  reduce
           2     3  chunk 0 -> rank 0  chunk 3 <- rank 2  reduce

        all-gather
           3     0  chunk 0 -> rank 1  chunk 3 <- rank 3  copy
           3     1  chunk 1 -> rank 2  chunk 0 <- rank 0  copy
           3     2  chunk 2 -> rank 3  chunk 1 <- rank 1  copy
           3     3  chunk 3 -> rank 0  chunk 2 <- rank 2  copy

           4     0  chunk 3 -> rank 1  chunk 2 <- rank 3  copy
           4     1  chunk 0 -> rank 2  chunk 3 <- rank 0  copy
           4     2  chunk 1 -> rank 3  chunk 0 <- rank 1  copy
           4     3  chunk 2 -> rank 0  chunk 1 <- rank 2  copy

           5     0  chunk 2 -> rank 1  chunk 1 <- rank 3  copy
           5     1  chunk 3 -> rank 2  chunk 2 <- rank 0  copy
           5     2  chunk 0 -> rank 3  chunk 3 <- rank 1  copy
           5     3  chunk 1 -> rank 0  chunk 0 <- rank 2  copy""")


def test_table_of_several_transfers_in_one_step():
    assert str(ringcomm.plan.reduce("direct", world_size=4, root=1)) == dedent("""\
        reduce (direct) of root 1: 4 ranks, 4 chunks, 2 steps

        step  rank  sends              receives

        reduce-scatter
           0     0  chunk 1 -> rank 1  chunk 0 <- ranks 1-3     reduce
                    chunk 2 -> rank 2
                    chunk 3 -> rank 3
           0     1  chunk 2 -> rank 2  chunk 1 <- ranks 0, 2-3  reduce
                    chunk 3 -> rank 3
                    chunk 0 -> rank 0
           0     2  chunk 3 -> rank 3  chunk 2 <- ranks 0-1, 3  reduce
                    chunk 0 -> rank 0
                    chunk 1 -> rank 1
           0     3  chunk 0 -> rank 0  chunk 3 <- ranks 0-2     reduce
                    chunk 1 -> rank 1
                    chunk 2 -> rank 2

        gather
           1     0  chunk 0 -> rank 1
           1     1                     chunk 0 <- rank 0        copy
                                       chunk 2 <- rank 2        copy
                                       chunk 3 <- rank 3        copy
           1     2  chunk 2 -> rank 1
           1     3  chunk 3 -> rank 1""")


def test_table_of_a_barrier_and_of_one_rank():
    assert str(ringcomm.plan.barrier(world_size=2)) == dedent("""\
        barrier (dissemination): 2 ranks, 0 chunks, 1 step

        step  rank  sends             receives

           0     0  signal -> rank 1  signal <- rank 1  wait
           0     1  signal -> rank 0  signal <- rank 0  wait""")
    assert str(ringcomm.plan.all_gather(world_size=1)) == (
        "all_gather (ring): 1 rank, 1 chunk, 0 steps"
    )


def test_repr_of_many_ranks_is_shortened():
    plans = ringcomm.plan.all_reduce(world_size=30)
    lines = repr(plans).splitlines()
    assert len(lines) == 101
    total = len(str(plans).splitlines())
    assert lines[-1] == f"... and {total - 100} more lines; print() shows them"
    assert repr(ringcomm.plan.barrier(world_size=2)) == str(ringcomm.plan.barrier(world_size=2))


def test_the_first_algorithm_of_a_collective_is_its_default():
    assert list(ALGORITHMS) == list(COLLECTIVES)
    for collective, names in ALGORITHMS.items():
        assert getattr(ringcomm.plan, collective)(world_size=3).algorithm == next(iter(names))


def test_plans_are_a_sequence_of_plans():
    plans = ringcomm.plan.broadcast(world_size=3, root=1)
    assert (len(plans), plans.world_size, plans.num_chunks, plans.num_steps) == (3, 3, 1, 2)
    assert plans[1].steps == [Step(sends=[Transfer(peer=2, first_chunk=0)])]
    assert plans[-1] == plans[2] == list(plans)[2]
    assert plans[1:] == (plans[1], plans[2])
    assert [sorted(step) for step in plans.steps()] == [[0, 1, 2], [2]]
    assert plans == ringcomm.plan.broadcast(world_size=3, root=1)
    assert plans != ringcomm.plan.broadcast(world_size=3, root=2)
    assert plans != list(plans)
    with pytest.raises(IndexError):
        plans[3]


def test_plans_written_by_hand_are_checked():
    swap = [
        Plan(1, [Step(sends=[Transfer(1 - rank, 0)], recvs=[Transfer(1 - rank, 0, reduce=True)])])
        for rank in range(2)
    ]
    plans = Plans("all_reduce", swap)
    plans.verify()
    assert str(plans).startswith("all_reduce (custom): 2 ranks, 1 chunk, 1 step\n")
    reason = "rank 0 ends with the contributions of rank 0 in chunk 0, and all_reduce promises"
    with pytest.raises(PlanError, match=reason):
        Plans("all_reduce", [Plan(1, [])] * 2).verify()
    with pytest.raises(ValueError, match="takes a multiple of world_size chunks, got 1 chunks"):
        Plans("all_gather", swap).verify()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda plan: plan.all_reduce("tree", world_size=4),
            "algorithm of all_reduce must be one of "
            f"{', '.join(map(repr, ALGORITHMS['all_reduce']))}, got 'tree'",
        ),
        (
            lambda plan: plan.gather("ring", world_size=4),
            "algorithm of gather must be 'direct', got 'ring'",
        ),
        (
            lambda plan: plan.barrier(world_size=0),
            "world_size must be between 1 and 262144, got 0",
        ),
        (
            lambda plan: plan.all_gather(world_size=2**40),
            "world_size must be between 1 and 262144, got 1099511627776",
        ),
        (
            lambda plan: plan.all_gather(world_size="four"),
            "world_size must be an integer, got 'four'",
        ),
        (
            lambda plan: plan.all_to_all(world_size=46341),
            "all_to_all takes a world_size of at most 46340, got 46341",
        ),
        (
            lambda plan: plan.broadcast(world_size=4, root=4),
            "root must be between 0 and 3, got 4",
        ),
        (
            lambda plan: plan.scatter(world_size=4, root=-1),
            "root must be between 0 and 3, got -1",
        ),
        (lambda plan: plan.Plans("all_reduce", []), "plans must hold one plan per rank, got none"),
        (
            lambda plan: plan.Plans("reduce", [Plan(1, [])], root=1),
            "root must be between 0 and 0, got 1",
        ),
        (
            lambda plan: plan.Plans("allreduce", [Plan(1, [])]),
            "collective must be one of 'all_reduce', 'reduce_scatter', 'reduce', 'all_gather', "
            "'gather', 'scatter', 'broadcast', 'all_to_all', 'barrier', got 'allreduce'",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(ringcomm.plan)
