"""Who comes last in a group's calls, by records of made jobs whose truth is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

import ringcomm.records.arrivals as arrivals_module
from ringcomm.records import Call, Frame
from ringcomm.records.arrivals import Collective, arrivals, clock_offsets

MS = 1_000_000  # nanoseconds
STEP = 50 * MS
TRANSFER = 100_000
STEPS = 20
RUNS = 100


def call(sequence: int, created: float, completed: float, line: int, operation: str) -> Call:
    frames = (Frame("step", "/home/me/train.py", line),)
    tensor = (1000, "float32")
    return Call(
        sequence - 1, "0", "", sequence, operation, tensor, tensor, False, int(created),
        int(completed), None, frames,
    )  # fmt: skip


def job(
    seed: int,
    world_size: int,
    slow: dict[int, float] | None = None,
    ahead: Sequence[float] = (),
    buckets: int = 1,
    operation: str = "all_reduce",
    slow_end: dict[int, float] | None = None,
) -> list[Collective]:
    """Steps of 50 ms with noise of 1 ms, then a collective for each bucket.

    `slow`: by how much the steps of a rank take longer. `ahead`: of each rank's clock. `slow_end`:
    by how many nanoseconds its collectives end later.
    """
    draw = random.Random(seed)
    now = [0.0] * world_size
    made: list[Collective] = []
    for _ in range(STEPS):
        for rank in range(world_size):
            now[rank] += STEP * (1 + (slow or {}).get(rank, 0.0)) + draw.gauss(0, 1) * MS
        for bucket in range(buckets):
            came = [at + draw.random() * 0.05 * MS for at in now]
            now = [
                max(came) + TRANSFER * (1 + draw.random()) + (slow_end or {}).get(rank, 0.0)
                for rank in range(world_size)
            ]
            clocks = ahead or [0.0] * world_size
            made.append(
                {
                    rank: call(
                        len(made) + 1, came[rank] + clocks[rank], now[rank] + clocks[rank],
                        10 + bucket, operation,
                    )
                    for rank in range(world_size)
                }
            )  # fmt: skip
    return made


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("buckets", [1, 8])
def test_a_rank_that_is_slow_by_a_twentieth_is_named(world_size: int, buckets: int) -> None:
    slow = world_size - 1
    named = [
        [each.rank for each in arrivals(job(seed, world_size, {slow: 0.05}, (), buckets)).late]
        for seed in range(RUNS)
    ]
    assert sum(each == [slow] for each in named) >= 99


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("buckets", [1, 8])
def test_nobody_is_named_where_nobody_is_slow(world_size: int, buckets: int) -> None:
    for seed in range(RUNS):
        assert arrivals(job(seed, world_size, buckets=buckets)).late == []


def test_what_it_cost_and_where() -> None:
    found = arrivals(job(0, 4, {2: 0.1}, buckets=3))
    (late,) = found.late
    assert found.num_calls == 3 * STEPS
    assert found.seconds == pytest.approx(1.1, rel=0.05)
    assert late.waited == pytest.approx(STEPS * 0.004, rel=0.3), "less than 5 ms: others are slow"
    assert found.waited == pytest.approx(late.waited, rel=0.2)
    assert STEPS <= late.times_last < 2 * STEPS
    assert late.worst.frames[0].line == 10, "the first bucket: then all are on time"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_how_likely_it_is_by_chance(seed: int, spread: float) -> None:
    """Beside all 2**14 ways in which a rank of two can come last."""
    draw = random.Random(seed)
    waits = [2.5 + abs(draw.gauss(0, spread)) for _ in range(14)]
    costs = [
        sum(wait for wait, is_last in zip(waits, way, strict=True) if is_last)
        for way in itertools.product((False, True), repeat=len(waits))
    ]
    for cost in draw.sample([cost for cost in costs if cost > 0.75 * sum(waits)], 20):
        exact = sum(each >= cost - 1e-9 for each in costs) / len(costs)
        assert 0.6 * exact < arrivals_module._chance(waits, cost, 0.5) < 4 * exact


def test_a_rank_that_is_late_at_one_call_of_a_step() -> None:
    """At the other one all are uneven, by more."""
    named = []
    for seed in range(RUNS):
        draw = random.Random(seed)
        made: list[Collective] = []
        for _ in range(STEPS):
            for line, late, noise in ((10, 2.5 * MS, 0.5 * MS), (11, 0.0, 8 * MS)):
                start = len(made) * STEP
                came = [start + abs(draw.gauss(0, noise)) + late * rank for rank in range(2)]
                ended = max(came) + TRANSFER
                made.append(
                    {
                        rank: call(len(made) + 1, came[rank], ended, line, "all_reduce")
                        for rank in range(2)
                    }
                )
        named.append([each.rank for each in arrivals(made).late])
    assert sum(each == [1] for each in named) >= 99


def test_a_rank_whose_transfers_end_late_is_distinguished_from_a_slow_one() -> None:
    for seed in range(RUNS):
        (by_transfers,) = arrivals(job(seed, 3, slow_end={1: 3 * MS})).late
        (by_program,) = arrivals(job(seed, 3, {1: 0.06})).late
        assert by_transfers.rank == by_program.rank == 1
        assert by_transfers.transferred > 0.7 * by_transfers.waited
        assert by_program.transferred < 0.1 * by_program.waited


def test_calls_made_before_the_last_one_ended_did_not_wait_for_it() -> None:
    """As DDP makes those of its buckets; the times at which they end say nothing of their calls."""
    made = []
    for step in range(STEPS):
        came = [step * STEP, step * STEP + 3 * MS]
        ended = [came[1] + STEP, came[1] + STEP + 3 * MS]
        made.append(
            {rank: call(step + 1, came[rank], ended[rank], 1, "all_reduce") for rank in (0, 1)}
        )
    (late,) = arrivals(made).late
    assert (late.rank, late.transferred) == (1, 0.0)


def test_two_slow_ranks_of_eight_are_not_blamed_for_each_other() -> None:
    assert {each.rank for each in arrivals(job(0, 8, {2: 0.2, 5: 0.1})).late} == {2}


def test_clocks_that_differ() -> None:
    ahead = (0.0, 3_600_000 * MS, -7 * MS)
    for seed in range(RUNS):
        assert arrivals(job(seed, 3, ahead=ahead)).late == []
        found = clock_offsets(job(seed, 3, ahead=ahead))
        assert [found[rank] for rank in range(3)] == pytest.approx(ahead, abs=2 * TRANSFER)
    assert [each.rank for each in arrivals(job(0, 3, {1: 0.05}, ahead)).late] == [1]


def test_a_late_rank_is_no_clock_that_is_ahead() -> None:
    assert clock_offsets(job(0, 2, {1: 0.05})) == {0: 0, 1: 0}


def test_calls_that_do_not_wait_for_all_say_nothing() -> None:
    """A root ends its broadcast whenever the others come."""
    assert arrivals(job(0, 2, {1: 0.5}, operation="broadcast")).num_calls == 0
    assert arrivals([]).num_calls == 0
    assert arrivals(job(0, 1, {0: 0.5})).late == []


def test_thousands_of_calls() -> None:
    made = [calls for seed in range(60) for calls in job(seed, 2, buckets=2)]
    assert len(made) == 2400 and arrivals(made).late == []
