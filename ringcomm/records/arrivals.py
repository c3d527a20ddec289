"""Who comes last: when the ranks of a group called its collectives, by their flight records."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ringcomm.records import Call

_What = TypeVar("_What")

# A rank is named only if what it does is no accident: such a result comes by chance less than once
# in a thousand groups, and the group lost this share of its time to the rank.
_BY_CHANCE = 1e-3
_LEAST_SHARE = 0.01
_MUCH_LONGER = 1.5  # times the median of a place
# Some ranks end these before the others have called them.
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter")

Collective = Mapping[int, Call]  # one collective, by rank


@dataclass(frozen=True)
class Arrivals:
    """What the calls of a group say about the time of its ranks.

    Attributes:
        num_calls: collectives that are in the records of all ranks.
        seconds: from the first call to the last one.
        waited: seconds from the second last rank's call to the last one's, all calls together.
        late: the ranks that others wait for, the worst first.
    """

    num_calls: int
    seconds: float
    waited: float
    late: list[Late[Call]]


@dataclass(frozen=True)
class Late(Generic[_What]):
    """A rank that others wait for.

    Attributes:
        rank: of the default group.
        times_last: in how many calls it came last.
        waited: seconds that it came after the second last rank, all those calls together.
        transferred: which of them it came later only because the call before had ended later on it.
        worst: a call at the place in the program that cost most.
    """

    rank: int
    times_last: int
    waited: float
    transferred: float
    worst: _What


@dataclass(frozen=True)
class Wait(Generic[_What]):
    """The wait for the last rank in one collective.

    Attributes:
        length: nanoseconds from the second last rank's call to the last one's.
        rank: which came last.
        call: the last rank's.
        place: in the program; calls of one place are alike.
        transferred: nanoseconds of `length` by which the call before had ended later on the last
            rank than on the second last; 0 if that is not known.
    """

    length: int
    rank: int
    call: _What
    place: Hashable
    transferred: int = 0


def arrivals(collectives: Sequence[Collective]) -> Arrivals:
    """Compares when ranks called collectives of one group, each of which is complete on all."""
    collectives = [calls for calls in collectives if waits_for_all(calls)]
    ranks = sorted(collectives[0]) if collectives else []
    if len(ranks) < 2:
        return Arrivals(len(collectives), 0.0, 0.0, [])
    ahead = clock_offsets(collectives)
    waits: list[Wait[Call]] = []
    before: Collective | None = None
    for calls in collectives:
        came = sorted((calls[rank].created - ahead[rank], rank) for rank in ranks)
        (second_came, second), (last_came, last) = came[-2:]
        length, transferred = last_came - second_came, 0
        # A call that was made before the last one had ended did not wait for it.
        if before and all(calls[rank].created >= _end(before[rank]) for rank in (last, second)):
            ended = [_end(before[rank]) - ahead[rank] for rank in (last, second)]
            transferred = min(max(ended[0] - ended[1], 0), length)
        waits.append(Wait(length, last, calls[last], _place(calls[ranks[0]]), transferred))
        before = calls
    times = [calls[rank].created - ahead[rank] for calls in collectives for rank in ranks]
    elapsed = max(times) - min(times)
    total = sum(each.length for each in waits)
    late = late_ranks(waits, ranks, elapsed)
    return Arrivals(len(collectives), elapsed / 1e9, total / 1e9, late)


def late_ranks(
    waits: Sequence[Wait[_What]], ranks: Sequence[int], elapsed: int
) -> list[Late[_What]]:
    """Which of the ranks the others wait for, the worst first.

    Args:
        waits: of the group's collectives; those without a wait may be missing.
        ranks: of the group.
        elapsed: nanoseconds that the calls took altogether, with what lay between them.
    """
    at: dict[Hashable, list[Wait[_What]]] = {}
    for wait in waits:
        at.setdefault(wait.place, []).append(wait)
    late = []
    for rank in ranks if waits else ():
        if _is_late(rank, waits, at.values(), len(ranks), elapsed):
            own = [each for each in waits if each.rank == rank]
            waited = sum(each.length for each in own) / 1e9
            transferred = sum(each.transferred for each in own) / 1e9
            late.append(Late(rank, len(own), waited, transferred, _worst(own)))
    return sorted(late, key=lambda each: -each.waited)


def clock_offsets(collectives: Sequence[Collective]) -> dict[int, int]:
    """How many nanoseconds each rank's clock is ahead of the first rank's, by their collectives.

    Nobody ends a collective before all have called it. So each collective bounds the
    difference of two clocks from both sides (Cristian, "Probabilistic clock synchronization",
    1989). Clocks that may be equal are taken as equal. Others are moved to the nearest bound, which
    is wrong by less than the shortest collective took.
    """
    first, *others = sorted(collectives[0])
    ahead = {first: 0}
    for rank in others:
        least = max(calls[rank].created - _end(calls[first]) for calls in collectives)
        most = min(_end(calls[rank]) - calls[first].created for calls in collectives)
        ahead[rank] = least if least > 0 else min(most, 0)
    return ahead


def _is_late(
    rank: int,
    waits: Sequence[Wait[_What]],
    at_places: Collection[Sequence[Wait[_What]]],
    world_size: int,
    elapsed: int,
) -> bool:
    """Whether the calls say so, all together or those of one place in the program.

    A rank may be late at one call of a step, where all are uneven at the others. At one place waits
    are alike, and a much longer one says little more than the others.
    """
    by_chance = _BY_CHANCE / world_size / 2

    def is_late(calls: Sequence[Wait[_What]], longest: float, by_chance: float) -> bool:
        waited = sum(each.length for each in calls if each.rank == rank)
        by_others = sum(each.length for each in calls) - waited
        if waited - by_others / (world_size - 1) < _LEAST_SHARE * elapsed:
            return False
        lengths = [min(each.length, longest) for each in calls]
        own = (min(each.length, longest) for each in calls if each.rank == rank)
        return _chance(lengths, sum(own), 1 / world_size) < by_chance

    return is_late(waits, math.inf, by_chance) or any(
        is_late(
            calls,
            _MUCH_LONGER * statistics.median(each.length for each in calls),
            by_chance / len(at_places),
        )
        for calls in at_places
    )


def _place(call: Call) -> tuple[object, ...]:
    return call.frames or call.kind


def waits_for_all(calls: Collective) -> bool:
    """Whether no rank ends such a collective before all have called it."""
    return next(iter(calls.values())).operation not in _ONE_SIDED


def _end(call: Call) -> int:
    assert call.completed is not None  # of calls that are complete on all ranks
    return call.completed


def _chance(waits: Sequence[float], waited: float, probability: float) -> float:
    """How likely it is that a rank that comes last with that probability costs so much.

    `waits`: of each call; `waited`: the sum of those in which the rank came last. Long waits count
    for more, so a rank is found that is late once in a step of many calls.

    It is the smaller of Chernoff's bound ("A measure of asymptotic efficiency for tests of a
    hypothesis", 1952), which is the least over t of exp(-t * waited) * product(1 - p + p * exp(t *
    wait)), and of twice the saddlepoint approximation (Lugannani and Rice, "Saddle point
    approximation for the distribution of the sum of independent random variables", 1980). Twice, as
    it may be half of the truth where all waits are equal.
    """
    scale = max(waits) or 1.0

    def log_bound(log_t: float) -> float:
        t = math.exp(log_t) / scale
        # log(1 - p + p * exp(x)) for an x of any size
        factors = (
            x + math.log(probability + (1 - probability) * math.exp(-x))
            for x in (t * wait for wait in waits)
        )
        return sum(factors) - t * waited

    low, high = math.log(1e-3), math.log(1e3)
    while high - low > 0.01:  # it has one minimum
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if log_bound(left) < log_bound(right):
            high = right
        else:
            low = left
    log_chance = min(log_bound(low), 0.0)
    t = math.exp(low) / scale
    tilted = [
        probability / (probability + (1 - probability) * math.exp(-t * wait)) for wait in waits
    ]
    variance = sum(w * w * q * (1 - q) for w, q in zip(waits, tilted, strict=True))
    r, u = math.sqrt(-2 * log_chance), t * math.sqrt(variance)
    if r < 1 or u == 0:  # too likely to matter, or all that there is to wait for
        return math.exp(log_chance)
    density = math.exp(log_chance) / math.sqrt(2 * math.pi)
    tail = math.erfc(r / math.sqrt(2)) / 2 + density * (1 / u - 1 / r)
    return min(math.exp(log_chance), 2 * tail)


def _worst(own: Sequence[Wait[_What]]) -> _What:
    """One call of the place in the script that cost most."""
    cost: Counter[Hashable] = Counter()
    call_at: dict[Hashable, _What] = {}
    for wait in own:
        cost[wait.place] += wait.length
        call_at[wait.place] = wait.call
    return call_at[cost.most_common(1)[0][0]]
