"""What a lane makes of a plan: the rules of csrc/core/lanes.h, and closed forms."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import ringcomm
from ringcomm.cli import main
from ringcomm.explain import timeline
from ringcomm.plan import Plan, PlanError, Plans, Step, Transfer
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.lane import Turn, replay

TRIP = 0.25
LETTERS = {"receive": "r", "reduce": "red", "copy": "c", "send": "s"}


def by_rank(turns: list[Turn], world_size: int) -> list[list[Turn]]:
    return [[turn for turn in turns if turn.rank == rank] for rank in range(world_size)]


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (collective, algorithm)
        for collective, names in ALGORITHMS.items()
        for algorithm, properties in names.items()
        if collective != "barrier" and not properties.two_level
    ],
)
def test_no_rank_reads_what_is_not_there_or_overwrites_what_is_read(
    collective: str, algorithm: str, num_slices: int
) -> None:
    plans = getattr(ringcomm.plan, collective)(algorithm, world_size=5)
    turns = replay(plans, num_slices, trip_time=TRIP)
    end = {(turn.rank, turn.action, turn.slice): turn.end for turn in turns}
    assert len(end) == len(turns) == num_slices * sum(len(plans.program(r)) for r in range(5))
    for rank, mine in enumerate(by_rank(turns, 5)):
        program = plans.program(rank)
        assert [(turn.slice, turn.action) for turn in mine] == [
            (at, index) for at in range(num_slices) for index in range(len(program))
        ]
        assert all(before.end == turn.free <= turn.begin for before, turn in pairwise(mine))
        in_slot: dict[int, Turn] = {}
        for turn in mine:
            action = program[turn.action]
            assert turn.end - turn.begin == max(1, len(action.sources))
            seen = [end[peer, index, turn.slice] for peer, index in action.published_by]
            if action.readers:
                before = in_slot.get(action.slot)
                if before is not None:
                    takers = program[before.action].taken_by
                    seen += [end[peer, index, before.slice] for peer, index in takers]
                in_slot[action.slot] = turn
            assert turn.begin == max([turn.free, *(time + TRIP for time in seen)])
            if turn.waits_for is not None:
                assert end[turn.waits_for] + TRIP == turn.begin


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_ring_takes_a_trip_for_each_step(n: int) -> None:
    turns = replay(ringcomm.plan.all_reduce("ring", world_size=n), 4, trip_time=TRIP)
    # All ranks are equally busy: one turn publishes, and each step takes one.
    assert {mine[-1].end for mine in by_rank(turns, n)} == {4 * (2 * n - 1 + 2 * (n - 1) * TRIP)}


def test_a_chain_of_one_slot_alternates_between_writing_and_being_read() -> None:
    n, num_slices = 4, 5
    turns = replay(ringcomm.plan.broadcast("chain", world_size=n), num_slices, trip_time=TRIP)
    last = by_rank(turns, n)[-1][-1]
    assert last.end == n + (n - 1) * TRIP + (num_slices - 1) * 2 * (1 + TRIP)


def test_a_plan_that_waits_for_ever_is_refused() -> None:
    def first_receives(peer: int) -> Plan:
        steps = [Step([], [Transfer(peer, 0, 1, True)]), Step([Transfer(peer, 0, 1)], [])]
        return Plan(1, steps)

    with pytest.raises(PlanError):
        replay(Plans("all_reduce", [first_receives(1), first_receives(0)]))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lane.svg"
    what = ["explain", "--timeline", "--world-size", "3", "--slices", "2", "-o", str(path)]
    assert main(what) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    text = path.read_text()
    assert "all_reduce (ring): 3 ranks" in text
    assert f"<!-- {timeline.LETTERS} -->" in text
    assert all(f"{short} {name[:3]}" in timeline.LETTERS for name, short in LETTERS.items())
    assert (
        text.count("<!-- r-red-c-s -->") == 3 * 2
    )  # the rank that completes a chunk, in each slice


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeline", "-o", "lane.html"], "-o must end in .svg, got lane.html"),
        (["--slices", "2"], "--slices is of a --timeline, got 2"),
        (["barrier", "--timeline"], "a barrier has no program"),
        (["--timeline", "--world-size", "40"], "at most 1000 turns, and 40 ranks have 9480"),
    ],
)
def test_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
