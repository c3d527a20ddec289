"""Which ranks the others of running groups wait for, seen by looking at them again and again."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringcomm.live import GroupStatus, RankStatus, at_fault, open_groups
from ringcomm.records.arrivals import Late, Wait, late_ranks

_EVERY = 0.002  # seconds between two looks
_MOST_OF_A_CORE = 0.05  # that the looks may take
_COLLECTIVE = re.compile(r"(?P<call>.*) #\d+")


@dataclass(frozen=True)
class Waits:
    """What was seen of a group.

    Attributes:
        group: as it was in the end.
        seconds: for how long it was looked at.
        num_calls: collectives that its ranks on this host ended in this time.
        waited: seconds in which all other ranks on this host waited for one rank that had not
            called the collective, without the first millisecond of each wait.
        late: the ranks that others wait for, the worst first. `worst` is the collective without its
            number, such as "all_reduce(count=256, dtype=float32, op=sum)"; `times_last` are the
            calls in which that was seen.
    """

    group: GroupStatus
    seconds: float
    num_calls: int
    waited: float
    late: list[Late[str]]


def watch(seconds: float) -> list[Waits]:
    """Looks at the groups of all processes of this host that this user may look at.

    It only reads their memory. Groups that are made meanwhile are not seen.

    Args:
        seconds: for how long.
    """
    with open_groups() as groups:
        watched = [(group, Watched(group.status())) for group in groups]
        begin = last = time.monotonic()
        while last < begin + seconds:
            looks = time.thread_time()
            now = time.monotonic()
            for group, seen in watched:
                seen.look(group.ranks(), now - last)
            last = now
            time.sleep(max(_EVERY, (time.thread_time() - looks) / _MOST_OF_A_CORE))
        return [seen.result(group.status(), last - begin) for group, seen in watched]


@dataclass
class Watched:
    """A group that is looked at: how it was at first, and the waits seen in each call."""

    first: GroupStatus
    waits: dict[str, Wait[str]] = field(default_factory=dict)

    def look(self, ranks: Sequence[RankStatus], seconds: float) -> None:
        """Notes if all others wait for one rank.

        Args:
            ranks: of the group, as they are now.
            seconds: since the last look. They count as if the ranks had waited all the time, which
                is right on average.
        """
        waiting = [ranks[rank] for rank in self.first.here if ranks[rank].waits]
        calls = {rank.doing for rank in waiting}
        awaited = {at_fault(ranks, rank.rank) for rank in waiting}
        if len(calls) != 1 or len(awaited) != 1:
            return
        (call,), (last,) = calls, awaited
        found = _COLLECTIVE.fullmatch(call)
        if found is None or last is None or ranks[last].doing == call:
            return  # a message, or all have called it
        if {rank.rank for rank in waiting} != {*self.first.here} - {last}:
            return
        before = self.waits[call].length if call in self.waits else 0
        length, name = before + int(seconds * 1e9), found["call"]
        self.waits[call] = Wait(length, ranks[last].global_rank, name, name)

    def result(self, group: GroupStatus, elapsed: float) -> Waits:
        """What was seen, with the group as it is in the end."""
        done = [
            group.ranks[rank].completed - self.first.ranks[rank].completed for rank in group.here
        ]
        waits = list(self.waits.values())
        ranks = [rank.global_rank for rank in group.ranks]
        waited = sum(wait.length for wait in waits) / 1e9
        late = late_ranks(waits, ranks, int(elapsed * 1e9))
        return Waits(group, elapsed, max(done, default=0), waited, late)
