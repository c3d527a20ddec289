"""The calls of all ranks of a job on one clock, and which ranks they waited for.

The format is Chrome's ("Trace Event Format", Google, 2016), which Perfetto shows: a rank is a
process, and a group is a thread of it, or several where its calls overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ringcomm.records import Call, Record
from ringcomm.records.arrivals import Collective, clock_offsets, waits_for_all
from ringcomm.records.groups import by_group, ended_everywhere, members
from ringcomm.records.words import group_of, line_of, operation_of
from ringcomm.units import readable_ranks

Event = dict[str, Any]


@dataclass(frozen=True)
class _Wait:
    """Until when a call waited, in nanoseconds of its rank's clock, and for which ranks."""

    end: int | None  # None: it waits still
    ranks: tuple[int, ...]


def timeline(records: Mapping[int, Record]) -> list[Event]:
    """The events of all ranks.

    Each call is an event with its line in the program. In a call that no rank ends before all have
    made it, the time until the last rank's call is an event, too: "waits for rank 3". Clocks of
    several hosts are compared by the collectives, as in `clock_offsets`. What has not ended reaches
    the end of the trace.
    """
    groups = by_group(records)
    complete = {
        name: ended_everywhere(calls, members(records, name)) for name, calls in groups.items()
    }
    ahead = _clocks(records, [list(calls.values()) for calls in complete.values()])
    waits: dict[tuple[int, int], _Wait] = {}
    for name, calls in groups.items():
        for sequence, by_rank in calls.items():
            if sequence in complete[name]:
                waits.update(_ended_waits(by_rank, ahead))
            else:
                waits.update(_open_waits(by_rank, members(records, name)))
    times = [
        time - ahead[rank]
        for rank, record in records.items()
        for call in record.calls
        for time in (call.created, call.completed)
        if time is not None
    ]
    if not times:
        return []
    begin, last = min(times), max(times)
    # Behind the last event, so that what began then can be seen.
    clock = _Clock(begin, last + (last - begin) // 20, ahead)
    return [
        event
        for rank, record in sorted(records.items())
        for event in _events(rank, record.calls, waits, clock)
    ]


@dataclass(frozen=True)
class _Clock:
    """Microseconds of the trace, from nanoseconds of the ranks' clocks."""

    begin: int
    end: int
    ahead: Mapping[int, int]

    def span(self, rank: int, begin: int, end: int | None) -> dict[str, float]:
        start = begin - self.ahead[rank]
        stop = self.end if end is None else end - self.ahead[rank]
        return {"ts": (start - self.begin) / 1e3, "dur": max(stop - start, 0) / 1e3}


def _clocks(records: Mapping[int, Record], groups: list[list[Collective]]) -> dict[int, int]:
    """How far each rank's clock is ahead of that of the first rank of the largest group."""
    ahead: dict[int, int] = {}
    bounds = [[calls for calls in each if waits_for_all(calls)] for each in groups]
    for collectives in sorted(filter(None, bounds), key=lambda calls: -len(calls[0])):
        offsets = clock_offsets(collectives)
        known = next((rank for rank in offsets if rank in ahead), None)
        base = 0 if known is None else ahead[known] - offsets[known]
        for rank, offset in offsets.items():
            ahead.setdefault(rank, base + offset)
    return {rank: ahead.get(rank, 0) for rank in records}


def _ended_waits(
    by_rank: Collective, ahead: Mapping[int, int]
) -> Iterator[tuple[tuple[int, int], _Wait]]:
    if not waits_for_all(by_rank):
        return
    came, last = max((call.created - ahead[rank], rank) for rank, call in by_rank.items())
    for rank, call in by_rank.items():
        assert call.completed is not None  # of those that have ended everywhere
        end = min(came + ahead[rank], call.completed)
        if rank != last and end > call.created:
            yield (rank, call.number), _Wait(end, (last,))


def _open_waits(by_rank: Collective, ranks: list[int]) -> Iterator[tuple[tuple[int, int], _Wait]]:
    """A call that has not ended waits for the ranks that have not made it."""
    missing = tuple(rank for rank in ranks if rank not in by_rank)
    for rank, call in by_rank.items():
        if call.completed is None and missing and not call.is_message:
            yield (rank, call.number), _Wait(None, missing)


def _events(
    rank: int, calls: list[Call], waits: Mapping[tuple[int, int], _Wait], clock: _Clock
) -> Iterator[Event]:
    named = {"ph": "M", "pid": rank, "tid": 0}
    yield {**named, "name": "process_name", "args": {"name": f"rank {rank}"}}
    yield {**named, "name": "process_sort_index", "args": {"sort_index": rank}}
    free_at: dict[str, list[float]] = {}  # when each thread of a group is free
    threads: dict[tuple[str, int], int] = {}
    for call in sorted(calls, key=lambda call: call.created):
        span = clock.span(rank, call.created, call.completed)
        lanes = free_at.setdefault(call.group, [])
        lane = next((n for n, end in enumerate(lanes) if end <= span["ts"]), len(lanes))
        lanes[lane : lane + 1] = [span["ts"] + span["dur"]]
        thread = threads.setdefault((call.group, lane), len(threads))
        place = {"ph": "X", "pid": rank, "tid": thread}
        about = {"number": call.sequence, "group": group_of(call), "where": line_of(call)}
        ended = "" if call.completed is not None else ", not ended"
        yield {**place, **span, "name": operation_of(call) + ended, "args": about}
        wait = waits.get((rank, call.number))
        if wait is not None:
            spent = clock.span(rank, call.created, wait.end)
            yield {**place, **spent, "name": f"waits for {readable_ranks(list(wait.ranks))}"}
    names = {call.group: group_of(call) for call in calls}
    for (group, _), thread in threads.items():
        yield {
            "ph": "M",
            "pid": rank,
            "tid": thread,
            "name": "thread_name",
            "args": {"name": names[group]},
        }
