"""Who comes last: when the ranks of a group called its collectives, by their flight records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringcomm.cli.records import Call

# A rank is named only if what it does is no accident: such a result comes by chance less than once
# in a thousand groups, and the group lost this share of its time to the rank.
_BY_CHANCE = 1e-3
_LEAST_SHARE = 0.01
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
    late: list[Late]


@dataclass(frozen=True)
class Late:
    """A rank that others wait for.

    Attributes:
        rank: of the default group.
        times_last: in how many calls it came last.
        waited: seconds that it came after the second last rank, all those calls together.
        worst: the call of that rank's script line that cost most.
    """

    rank: int
    times_last: int
    waited: float
    worst: Call


def arrivals(collectives: Sequence[Collective]) -> Arrivals:
    """Compares when ranks called collectives of one group, each of which is complete on all."""
    collectives = [calls for calls in collectives if _waits_for_all(calls)]
    ranks = sorted(collectives[0]) if collectives else []
    if len(ranks) < 2:
        return Arrivals(len(collectives), 0.0, 0.0, [])
    ahead = clock_offsets(collectives)
    waits = []  # (nanoseconds, the rank that came last, its call)
    for calls in collectives:
        came = sorted((calls[rank].created - ahead[rank], rank) for rank in ranks)
        (second, _), (last, rank) = came[-2:]
        waits.append((last - second, rank, calls[rank]))
    times = [calls[rank].created - ahead[rank] for calls in collectives for rank in ranks]
    seconds = (max(times) - min(times)) / 1e9
    lengths = [wait for wait, _, _ in waits]
    total = sum(lengths)
    late = []
    for rank in ranks:
        own = [(wait, call) for wait, last, call in waits if last == rank]
        waited = sum(wait for wait, _ in own)
        excess = (waited - (total - waited) / (len(ranks) - 1)) / 1e9
        if excess < _LEAST_SHARE * seconds:
            continue
        if _chance(lengths, waited, 1 / len(ranks)) < _BY_CHANCE / len(ranks):
            late.append(Late(rank, len(own), waited / 1e9, _worst(own)))
    late.sort(key=lambda each: -each.waited)
    return Arrivals(len(collectives), seconds, total / 1e9, late)


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


def _waits_for_all(calls: Collective) -> bool:
    return next(iter(calls.values())).operation not in _ONE_SIDED


def _end(call: Call) -> int:
    assert call.completed is not None  # of calls that are complete on all ranks
    return call.completed


def _chance(waits: Sequence[float], waited: float, probability: float) -> float:
    """At most how likely it is that a rank that comes last with that probability costs so much.

    `waits`: of each call; `waited`: the sum of those in which the rank came last. Long waits count
    for more, so a rank is found that is late once in a step of many calls. It is Chernoff's bound
    ("A measure of asymptotic efficiency for tests of a hypothesis", 1952): the least over t of
    exp(-t * waited) * product(1 - p + p * exp(t * wait)).
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
    return math.exp(min(log_bound(low), 0.0))


def _worst(own: Sequence[tuple[int, Call]]) -> Call:
    """One call of the place in the script that cost most."""
    cost: Counter[tuple[object, ...]] = Counter()
    call_at: dict[tuple[object, ...], Call] = {}
    for wait, call in own:
        place = call.frames or call.kind
        cost[place] += wait
        call_at[place] = call
    return call_at[cost.most_common(1)[0][0]]
