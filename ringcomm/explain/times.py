"""When each round of a plan is over, on a network that is simulated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringcomm._C.plan import Plan, Step
from ringcomm.explain.contributions import Move, follow
from ringcomm.plan.network import Network
from ringcomm.plan.plans import Plans


@dataclass(frozen=True)
class Round:
    """What takes place at once, as `History` has it.

    Attributes:
        phase: the part of the plans it belongs to; "" if they name none.
        num_transfers: between all ranks.
        nbytes: of all these transfers.
        seconds: from the beginning until this round and those before it are done, with nothing
            after them. The last round's is the time of the whole collective.
    """

    phase: str
    num_transfers: int
    nbytes: float
    seconds: float


@dataclass(frozen=True)
class Timed:
    """Plans with their rounds, timed.

    Attributes:
        plans: that were simulated.
        rounds: in order; none if nothing is sent.
        nbytes: that all ranks send.
        most_nbytes: that the busiest rank sends.
    """

    plans: Plans
    rounds: list[Round]
    nbytes: float
    most_nbytes: float

    @property
    def seconds(self) -> float:
        """Until the last rank is done."""
        return self.rounds[-1].seconds if self.rounds else 0.0


def timed(
    plans: Plans, nbytes: float, network: Network, *, slice_nbytes: float = math.inf
) -> Timed:
    """Simulates the plans, cut off after each of their rounds; the arguments are `simulate`'s.

    Raises:
        PlanError: sends and receives do not match, or the plans deadlock.
        ValueError: a network that does not fit the plans, or a number out of range.
    """
    history = follow(plans)
    whole = plans.simulate(nbytes, network, slice_nbytes=slice_nbytes).seconds
    per_chunk = nbytes / plans.num_chunks if plans.num_chunks else 0.0
    phases = [name for name, count in history.phases for _ in range(count)]
    phases = phases or [""] * len(history.moves)
    sent: Counter[int] = Counter()
    rounds: list[Round] = []
    for index, part in enumerate(_prefixes(plans, history.moves)):
        moves = history.moves[index]
        for move in moves:
            sent[move.sender] += move.num_chunks
        end = whole
        if index + 1 < len(history.moves):
            end = part.simulate(nbytes, network, slice_nbytes=slice_nbytes).seconds
        before = rounds[-1].seconds if rounds else 0.0
        chunks = sum(move.num_chunks for move in moves)
        # Without what follows it a part is never slower, but for rounding.
        end = max(before, min(end, whole))
        rounds.append(Round(phases[index], len(moves), chunks * per_chunk, end))
    most = max(sent.values(), default=0)
    return Timed(plans, rounds, sent.total() * per_chunk, most * per_chunk)


def _prefixes(plans: Plans, moves: Sequence[Sequence[Move]]) -> Iterator[Plans]:
    """The plans as far as they have come after each round."""
    steps = [list(plan.steps) for plan in plans]
    done: Counter[tuple[int, int]] = Counter()  # transfers by sender and receiver, in their order
    for now in moves:
        done.update((move.sender, move.receiver) for move in now)
        parts = [Plan(plans.num_chunks, list(_cut(mine, r, done))) for r, mine in enumerate(steps)]
        yield Plans(plans.collective, parts, root=plans.root)


def _cut(steps: Sequence[Step], rank: int, done: Counter[tuple[int, int]]) -> Iterator[Step]:
    """A rank's steps up to the one that it is in."""
    taken: Counter[tuple[int, int]] = Counter()

    def is_done(sender: int, receiver: int) -> bool:
        taken[sender, receiver] += 1
        return taken[sender, receiver] <= done[sender, receiver]

    for step in steps:
        sends = [send for send in step.sends if is_done(rank, send.peer)]
        recvs = [recv for recv in step.recvs if is_done(recv.peer, rank)]
        if len(sends) < len(step.sends) or len(recvs) < len(step.recvs):
            yield Step(sends, recvs)
            return
        yield step
