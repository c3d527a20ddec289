"""Who holds whose contribution to which chunk, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringcomm._C.plan import Plan
from ringcomm._plans import Plans

Cells = list[list[int]]  # [rank][chunk]: a bit for each rank whose data is in it


@dataclass(frozen=True)
class Move:
    """A transfer, seen from both sides."""

    sender: int
    receiver: int
    first_chunk: int
    num_chunks: int
    reduce: bool

    def __str__(self) -> str:
        if self.num_chunks == 0:
            return f"rank {self.sender} → rank {self.receiver}: a signal"
        last = self.first_chunk + self.num_chunks - 1
        chunks = f"chunk {last}" if self.num_chunks == 1 else f"chunks {self.first_chunk}–{last}"
        action = "added" if self.reduce else "copied"
        return f"rank {self.sender} → rank {self.receiver}: {chunks}, {action}"


@dataclass(frozen=True)
class History:
    """What a group's plans do.

    Attributes:
        cells: before the first step, and after each step, [rank][chunk] as bits: bit s is set if
            rank s's data is in it.
        moves: of each step.
        complete: of each chunk, the bits of a finished one.
    """

    cells: list[Cells]
    moves: list[list[Move]]
    complete: list[int]


def follow(plans: Plans) -> History:
    """Carries plans out on sets of ranks instead of numbers.

    In a step, what is sent is what was there before the step; a receive unites (reduce) or
    replaces (copy). Plans that `Plans.verify` accepts have the same outcome in any order.
    """
    cells = _initial(plans)
    history = History([cells], [], _complete(plans))
    for index in range(plans.num_steps):
        moves = _moves(plans, index)
        after = [list(row) for row in cells]
        for move in moves:
            for chunk in range(move.first_chunk, move.first_chunk + move.num_chunks):
                kept = after[move.receiver][chunk] if move.reduce else 0
                after[move.receiver][chunk] = kept | cells[move.sender][chunk]
        cells = after
        history.cells.append(cells)
        history.moves.append(moves)
    return history


def _moves(plans: Sequence[Plan], index: int) -> list[Move]:
    return [
        Move(recv.peer, rank, recv.first_chunk, recv.num_chunks, recv.reduce)
        for rank, plan in enumerate(plans)
        if index < len(plan.steps)
        for recv in plan.steps[index].recvs
    ]


def _initial(plans: Plans) -> Cells:
    """Each rank's own data, where it has any."""
    n, chunks = plans.world_size, plans.num_chunks

    def has(rank: int, chunk: int) -> bool:
        if plans.collective in ("all_gather", "gather"):
            return rank == chunk
        if plans.collective in ("broadcast", "scatter"):
            return rank == plans.root
        if plans.collective == "all_to_all":
            return rank == chunk // n
        return True

    return [[1 << rank if has(rank, chunk) else 0 for chunk in range(chunks)] for rank in range(n)]


def _complete(plans: Plans) -> list[int]:
    """A chunk is complete with all that any rank has to give to it."""
    return [sum({row[chunk] for row in _initial(plans)}) for chunk in range(plans.num_chunks)]
