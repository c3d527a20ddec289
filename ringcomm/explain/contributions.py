"""Which rank holds which ranks' contributions to each chunk, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringcomm._C.plan import Step, Transfer
from ringcomm.plan.plans import Plans

# What is followed in about a second.
_MOST_CELLS = 1 << 24
_MOST_MOVES = 1 << 18

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
    """What a group's plans do, round by round.

    In a round, every transfer takes place that both of its ranks have come to. A ring has one round
    per step; along a chain, each rank's steps begin a round after those of the rank before it.

    Attributes:
        cells: before the first round, and after each, [rank][chunk] as bits: bit s is set if rank
            s's data is in it.
        moves: of each round.
        phases: names of consecutive parts with their numbers of rounds.
        complete: of each chunk, the bits of a finished one.
    """

    cells: list[Cells]
    moves: list[list[Move]]
    phases: list[tuple[str, int]]
    complete: list[int]


def follow(plans: Plans) -> History:
    """Carries plans out on sets of ranks instead of numbers.

    What a rank sends is what it had before its step; a receive unites (reduce) or replaces (copy).

    Raises:
        ValueError: a rank never stops waiting, as `Plans.verify` says, or there is too much to
        show.
    """
    _check_size(plans)
    cells = _initial(plans)
    complete = [sum({row[chunk] for row in cells}) for chunk in range(plans.num_chunks)]
    shown = plans.world_size * plans.num_chunks
    history = History([[list(row) for row in cells]], [], [], complete)
    ranks = [_Rank(plan.steps, row) for plan, row in zip(plans, cells, strict=True)]
    while not all(rank.is_through for rank in ranks):
        moves = [move for number in range(len(ranks)) for move in _receive(number, ranks)]
        gone_on = [rank.go_on() for rank in ranks]
        if not moves and not any(gone_on):
            raise ValueError("these plans wait for ever")
        history.cells.append([list(row) for row in cells])
        _check("pairs of rank and chunk in all rounds", shown * len(history.cells), _MOST_CELLS)
        history.moves.append(moves)
    if len(history.moves) == plans.num_steps:
        history.phases.extend(plans.phases)
    return history


def _check_size(plans: Plans) -> None:
    held = sum(plan.num_steps + plan.num_transfers for plan in plans)
    _check("steps and transfers", held, _MOST_MOVES)
    _check("pairs of rank and chunk", plans.world_size * plans.num_chunks, _MOST_CELLS)


def _check(what: str, number: int, most: int) -> None:
    if number > most:
        raise ValueError(f"a picture shows at most {most} {what}, and there are {number}")


class _Rank:
    """Where one rank is in its plan; `row` holds its chunks and is changed in place."""

    def __init__(self, steps: Sequence[Step], row: list[int]) -> None:
        self.row = row
        self._steps = iter(steps)
        self.is_through = False
        self.sends: list[Transfer] = []
        self.recvs: list[Transfer] = []
        self.go_on()

    def go_on(self) -> bool:
        """Begins the next step if this one's transfers are done; a step without any is a round."""
        if self.is_through or self.sends or self.recvs:
            return False
        step = next(self._steps, None)
        if step is None:
            self.is_through = True
        else:
            self.sends, self.recvs = list(step.sends), list(step.recvs)
            self.before = list(self.row)
        return True


def _receive(number: int, ranks: list[_Rank]) -> Iterator[Move]:
    """All that can reach a rank in this round. With one peer, transfers keep their order."""
    receiver = ranks[number]
    for recv in list(receiver.recvs):
        sender = ranks[recv.peer]
        send = next((send for send in sender.sends if send.peer == number), None)
        if send is None:
            continue
        for chunk in range(recv.first_chunk, recv.first_chunk + recv.num_chunks):
            kept = receiver.row[chunk] if recv.reduce else 0
            receiver.row[chunk] = kept | sender.before[chunk]
        sender.sends.remove(send)
        receiver.recvs.remove(recv)
        yield Move(recv.peer, number, recv.first_chunk, recv.num_chunks, recv.reduce)


def _initial(plans: Plans) -> Cells:
    """Each rank's own data, where it has any."""
    n, chunks = plans.world_size, plans.num_chunks

    def has(rank: int, chunk: int) -> bool:
        if plans.collective in ("all_gather", "gather", "all_to_all"):
            return rank == chunk // (chunks // n)
        if plans.collective in ("broadcast", "scatter"):
            return rank == plans.root
        return True

    return [[1 << rank if has(rank, chunk) else 0 for chunk in range(chunks)] for rank in range(n)]
