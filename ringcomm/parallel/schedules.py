"""In what order a pipeline's stages work on the micro-batches of a step.

A network is cut into p stages, one per rank, and a batch into m micro-batches, so that the stages
can work at the same time. A schedule is one stage's list of actions. It says nothing of messages:
those follow from it (a stage receives what an action needs and sends what it yields).

3 stages, 4 micro-batches, as timeline.draw shows them: forwards are digits, backwards letters (a is
the backward of micro-batch 0) and take twice as long, dots are idle:

    GPipe    stage 0  0123......aabbccdd
             stage 1  .0123...aabbccdd..
             stage 2  ..0123aabbccdd....

    1F1B     stage 0  012....aa3bb.cc.dd
             stage 1  .01..aa2bb3cc.dd..
             stage 2  ..0aa1bb2cc3dd....

GPipe: all forwards, then all backwards. Every stage holds the activations of all m micro-batches
when the backwards begin.

1F1B: stage s begins with p-s-1 forwards, which fills the stages after it, then goes on with one
forward and one backward in turn, and ends with the backwards that are left. It never holds the
activations of more than p-s micro-batches, however many there are.

Bubble. Every stage works for m units of time (a unit being one forward and one backward) and in
both schedules the last micro-batch is through after m+p-1: p-1 units pass until the first one has
reached the last stage and come back. So every stage is idle for the fraction (p-1)/(m+p-1).

GPipe: Y. Huang et al., arXiv:1811.06965. 1F1B: A. Harlap et al., PipeDream, arXiv:1806.03377, here
with all gradients applied at the end of the step ("PipeDream-Flush", D. Narayanan et al.,
arXiv:2104.04473, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple


class Action(NamedTuple):
    """What a stage does with one micro-batch."""

    phase: Literal["forward", "backward"]
    microbatch: int


# (stage, num_stages, num_microbatches) -> what the stage does, in order
Schedule = Callable[[int, int, int], list[Action]]


def gpipe(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """All forwards, then all backwards.

    Raises:
        ValueError: there is no such stage, or no micro-batch.
    """
    _check(stage, num_stages, num_microbatches)
    forwards = [Action("forward", index) for index in range(num_microbatches)]
    backwards = [Action("backward", index) for index in range(num_microbatches)]
    return forwards + backwards


def one_forward_one_backward(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """1F1B: as few forwards as fill the later stages, then one backward after each forward.

    Raises:
        ValueError: there is no such stage, or no micro-batch.
    """
    _check(stage, num_stages, num_microbatches)
    ahead = min(num_stages - stage - 1, num_microbatches)
    actions = [Action("forward", index) for index in range(ahead)]
    for index in range(num_microbatches):
        if index + ahead < num_microbatches:
            actions.append(Action("forward", index + ahead))
        actions.append(Action("backward", index))
    return actions


def _check(stage: int, num_stages: int, num_microbatches: int) -> None:
    if not 0 <= stage < num_stages or num_microbatches < 1:
        raise ValueError(
            "want 0 <= stage < num_stages and num_microbatches >= 1, got "
            f"stage={stage}, num_stages={num_stages}, num_microbatches={num_microbatches}"
        )
