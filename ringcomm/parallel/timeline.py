"""When the stages of a pipeline do what, and how long they are idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ringcomm.parallel.schedules import Action


class Interval(NamedTuple):
    """One action of one stage; times in any unit, the same for all."""

    stage: int
    action: Action
    begin: float
    end: float


def replay(
    schedules: Sequence[Sequence[Action]], forward: float = 1, backward: float = 2
) -> list[Interval]:
    """What happens if every action takes a fixed time, and messages none.

    An action begins when its stage is done with the one before and the neighbour has delivered:
    for a forward the previous stage, for a backward the next stage. The last stage's backward needs
    its own forward.

    Args:
        schedules: one per stage; gpipe's, say, or what a Pipeline has carried out.
        forward: time of a forward on one stage.
        backward: time of a backward; it computes two gradients, hence twice as long.

    Returns:
        One interval per action, by stage and time.

    Raises:
        ValueError: the schedules cannot be carried out: a stage waits for what never comes, or two
            neighbours differ in the order of what one sends and the other receives.
    """
    _check_orders(schedules)
    duration = {"forward": forward, "backward": backward}
    ends: dict[tuple[int, Action], float] = {}
    done: list[list[Interval]] = [[] for _ in schedules]
    progress = True
    while progress:
        progress = False
        for stage, actions in enumerate(schedules):
            for action in actions[len(done[stage]) :]:
                needed = _needed(stage, action, len(schedules))
                if needed is not None and needed not in ends:
                    break
                begin = done[stage][-1].end if done[stage] else 0
                if needed is not None:
                    begin = max(begin, ends[needed])
                ends[stage, action] = begin + duration[action.phase]
                done[stage].append(Interval(stage, action, begin, ends[stage, action]))
                progress = True
    for stage, actions in enumerate(schedules):
        if len(done[stage]) < len(actions):
            phase, microbatch = actions[len(done[stage])]
            raise ValueError(
                f"the schedules cannot be carried out: stage {stage} waits for ever to begin "
                f"{phase} {microbatch}"
            )
    return [interval for stage in done for interval in stage]


def _needed(stage: int, action: Action, num_stages: int) -> tuple[int, Action] | None:
    """What a neighbour, or for the last stage's backwards the stage itself, must have done."""
    if action.phase == "forward":
        return (stage - 1, action) if stage > 0 else None
    if stage + 1 < num_stages:
        return stage + 1, action
    return stage, Action("forward", action.microbatch)


def _check_orders(schedules: Sequence[Sequence[Action]]) -> None:
    """Messages between two stages arrive in the order in which they are sent."""
    for phase in ("forward", "backward"):
        orders = [[a.microbatch for a in actions if a.phase == phase] for actions in schedules]
        for stage, order in enumerate(orders):
            if order != orders[0]:
                raise ValueError(
                    f"the stages' {phase}s must be in one order, but stage 0's is {orders[0]} and "
                    f"stage {stage}'s is {order}"
                )


def bubble_fraction(timeline: Sequence[Interval]) -> float:
    """The part of all stages' time in which they are idle, from the first begin to the last end.

    Raises:
        ValueError: no time passes.
    """
    if not any(interval.begin < interval.end for interval in timeline):
        raise ValueError(f"the timeline has no action that takes time: {list(timeline)}")
    num_stages = len({interval.stage for interval in timeline})
    begin = min(interval.begin for interval in timeline)
    end = max(interval.end for interval in timeline)
    busy = sum(interval.end - interval.begin for interval in timeline)
    return 1 - busy / (num_stages * (end - begin))


def draw(timeline: Sequence[Interval]) -> str:
    """A line per stage, a character per unit of time; forwards are digits, backwards letters.

    Micro-batch 0 is "0" going forward and "a" going backward, and so on; "." is idle. Times must be
    whole numbers, as replay's are.
    """
    lines = []
    end = max(int(interval.end) for interval in timeline)
    for stage in sorted({interval.stage for interval in timeline}):
        line = ["."] * end
        for _, action, begin, until in (i for i in timeline if i.stage == stage):
            signs = _FORWARDS if action.phase == "forward" else _BACKWARDS
            sign = signs[action.microbatch % len(signs)]
            line[int(begin) : int(until)] = sign * (int(until) - int(begin))
        lines.append(f"stage {stage}  {''.join(line)}")
    return "\n".join(lines)


_FORWARDS = "0123456789"
_BACKWARDS = "abcdefghij"
