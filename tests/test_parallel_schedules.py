"""Schedules and timelines, without any rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcomm.parallel import (
    Action,
    Interval,
    Schedule,
    bubble_fraction,
    draw,
    gpipe,
    one_forward_one_backward,
    replay,
)

SCHEDULES = [gpipe, one_forward_one_backward]


def of_all_stages(schedule: Schedule, num_stages: int, num_microbatches: int) -> list[list[Action]]:
    return [schedule(stage, num_stages, num_microbatches) for stage in range(num_stages)]


def peak_in_flight(actions: list[Action]) -> int:
    change = {"forward": 1, "backward": -1}
    counts = [sum(change[a.phase] for a in actions[:end]) for end in range(len(actions) + 1)]
    return max(counts)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(num_stages=st.integers(1, 12), num_microbatches=st.integers(1, 24))
def test_bubble(schedule: Schedule, num_stages: int, num_microbatches: int) -> None:
    schedules = of_all_stages(schedule, num_stages, num_microbatches)
    for actions in schedules:
        assert len(actions) == len(set(actions)) == 2 * num_microbatches
    formula = (num_stages - 1) / (num_microbatches + num_stages - 1)
    assert math.isclose(bubble_fraction(replay(schedules)), formula, abs_tol=1e-12)


@given(num_stages=st.integers(1, 12), num_microbatches=st.integers(1, 24))
def test_activations_in_flight(num_stages: int, num_microbatches: int) -> None:
    for stage in range(num_stages):
        peak = peak_in_flight(gpipe(stage, num_stages, num_microbatches))
        assert peak == num_microbatches
        peak = peak_in_flight(one_forward_one_backward(stage, num_stages, num_microbatches))
        assert peak == min(num_stages - stage, num_microbatches)


def test_drawings() -> None:
    assert draw(replay(of_all_stages(gpipe, 3, 4))).splitlines() == [
        "stage 0  0123......aabbccdd",
        "stage 1  .0123...aabbccdd..",
        "stage 2  ..0123aabbccdd....",
    ]
    assert draw(replay(of_all_stages(one_forward_one_backward, 3, 4))).splitlines() == [
        "stage 0  012....aa3bb.cc.dd",
        "stage 1  .01..aa2bb3cc.dd..",
        "stage 2  ..0aa1bb2cc3dd....",
    ]


def test_times_of_ones_own() -> None:
    timeline = replay(of_all_stages(gpipe, 2, 1), forward=3, backward=5)
    assert [(i.stage, i.begin, i.end) for i in timeline] == [
        (0, 0, 3),
        (0, 11, 16),
        (1, 3, 6),
        (1, 6, 11),
    ]
    assert bubble_fraction(timeline) == 0.5


def forwards(*numbers: int) -> list[Action]:
    return [Action("forward", number) for number in numbers]


def backwards(*numbers: int) -> list[Action]:
    return [Action("backward", number) for number in numbers]


@pytest.mark.parametrize(
    ("schedules", "words"),
    [
        ([backwards(0) + forwards(0)], "stage 0 waits for ever"),
        ([forwards(0) + backwards(0, 1)], "stage 0 waits for ever to begin backward 1"),
        ([forwards(0) + backwards(0), backwards(0) + forwards(0)], "stage 0 waits for ever"),
        ([forwards(0, 1), forwards(1, 0)], r"forwards.*\[0, 1\].*stage 1's is \[1, 0\]"),
        ([forwards(0, 1), forwards(0)], r"forwards.*\[0, 1\].*stage 1's is \[0\]"),
        (
            [forwards(0, 1) + backwards(1, 0), forwards(0, 1) + backwards(0, 1)],
            r"backwards.*\[1, 0\].*stage 1's is \[0, 1\]",
        ),
    ],
)
def test_what_cannot_be_carried_out(schedules: list[list[Action]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replay(schedules)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("arguments", [(-1, 2, 1), (2, 2, 1), (0, 2, 0)])
def test_bad_arguments(schedule: Schedule, arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"stage={arguments[0]}, num_stages={arguments[1]}"):
        schedule(*arguments)


def test_no_timeline() -> None:
    for timeline in ([], [Interval(0, Action("forward", 0), 1.0, 1.0)]):
        with pytest.raises(ValueError, match="no action that takes time"):
            bubble_fraction(timeline)


def test_bubble_of_a_measured_timeline() -> None:
    timeline = [
        Interval(0, Action("forward", 0), 100.0, 101.0),
        Interval(1, Action("forward", 0), 101.5, 102.0),
    ]
    assert bubble_fraction(timeline) == 1 - 1.5 / 4
