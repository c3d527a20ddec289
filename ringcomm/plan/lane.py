"""What each rank does when in a lane, and which rank it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ringcomm._C.plan import Action
from ringcomm.plan.plans import Plans


class Turn(NamedTuple):
    """A rank carries out an action of its program, of one slice of the action's chunk.

    Times are in any unit, the same for all.
    """

    rank: int
    action: int  # of the rank's program
    slice: int
    free: float  # the rank is done with its turn before
    begin: float
    end: float
    waits_for: tuple[int, int, int] | None  # rank, action, slice of the turn it is late for


def replay(
    plans: Plans, num_slices: int = 1, *, pass_time: float = 1.0, trip_time: float = 0.0
) -> list[Turn]:
    """A lane's turns, rank by rank and in their order.

    The rules are those of shared memory's executor and of the fused one (``csrc/core/lanes.h``): a
    rank does the actions of its program one after the other, and all of them for a slice before
    the next slice. An action begins when the slices that it takes are published and all ranks
    have read the slot that it publishes in. Flags take ``trip_time``;
    moving a slice takes ``pass_time``, as does each further one that is added in the same pass.

    Args:
        plans: what is carried out.
        num_slices: of every chunk.
        pass_time: for reading a slice, and writing the result wherever it belongs.
        trip_time: until a peer sees that an action is done.

    Raises:
        PlanError: the plans do not fit together, or deadlock.
        ValueError: plans of a barrier, which moves nothing, or no slices.
    """
    if num_slices < 1:
        raise ValueError(f"num_slices must be at least 1, got {num_slices}")
    programs = [plans.program(rank) for rank in range(plans.world_size)]
    turns: list[list[Turn]] = [[] for _ in programs]
    ends: dict[tuple[int, int, int], float] = {}
    progress = True
    while progress:
        progress = False
        for rank, program in enumerate(programs):
            for number in range(len(turns[rank]), len(program) * num_slices):
                at, index = divmod(number, len(program))
                action = program[index]
                awaited = [*_published(action, at), *_taken(program, action, index, at)]
                if not all(turn in ends for turn in awaited):
                    break
                free = turns[rank][-1].end if turns[rank] else 0.0
                seen = {turn: ends[turn] + trip_time for turn in awaited}
                last = max(seen, key=seen.__getitem__, default=None)
                late = last if last is not None and seen[last] > free else None
                begin = free if late is None else seen[late]
                end = begin + max(1, len(action.sources)) * pass_time
                turns[rank].append(Turn(rank, index, at, free, begin, end, late))
                ends[rank, index, at] = end
                progress = True
    return [turn for done in turns for turn in done]


def _published(action: Action, at: int) -> Iterator[tuple[int, int, int]]:
    for rank, index in action.published_by:
        yield rank, index, at


def _taken(
    program: Sequence[Action], action: Action, index: int, at: int
) -> Iterator[tuple[int, int, int]]:
    """The ranks that were to read what the action's slot held before."""
    if not action.readers:
        return
    if action.replaces >= index:
        at -= 1  # written to in the slice before
    if at >= 0:
        for rank, reader in program[action.replaces].taken_by:
            yield rank, reader, at
