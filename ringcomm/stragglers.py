"""Which ranks of a group are late: what the ranks' flight records say, gathered by a call."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from ringcomm._delegate import on_ring
from ringcomm.flight import dump
from ringcomm.records import Call, read
from ringcomm.records.arrivals import Arrivals, Collective, Late, arrivals
from ringcomm.records.words import group_of, where_of
from ringcomm.topology import topology


@dataclass(frozen=True)
class Straggler:
    """A rank for which the others of a group wait.

    Attributes:
        rank: in the default group.
        host: the name of its host, as in `ringcomm.Topology`.
        group: the name of the group in flight records, and its description.
        num_calls: the collectives that were looked at.
        share_last: in which part of them this rank came last, from 0 to 1.
        waited_s: seconds from the second last rank's call to this one's, over all calls in which
            this one came last.
        elapsed_s: seconds from the first call to the last one.
        where: the line of the call for which the others waited most, such as "at train.py:8 in
            step", or the call alone if lines are not recorded (RINGCOMM_FLIGHT_STACKS=1).
    """

    rank: int
    host: str
    group: str
    num_calls: int
    share_last: float
    waited_s: float
    elapsed_s: float
    where: str

    def __str__(self) -> str:
        return (
            f"rank {self.rank} (host {self.host}, group {self.group}) came last in "
            f"{self.share_last:.0%} of {self.num_calls:,} calls, the others waited "
            f"{self.waited_s:.3g} s of {self.elapsed_s:.3g} s for it; most {self.where}"
        )


def stragglers(group: ProcessGroup | None = None, *, last: int | None = None) -> list[Straggler]:
    """Says which ranks of a group are late, by the times at which all called its collectives.

    All ranks of the group call it. They send each other what they recorded, some 32 bytes for each
    call, so call it once in a while: after an epoch, or every thousand steps.

    A rank is named if the group lost at least 1 % of its time to it, and if this is no accident: if
    all ranks come last equally often, a name comes up in less than one of 1,000 groups. Broadcasts,
    reduces, gathers, scatters and messages are not looked at, as they do not wait for all ranks.
    Clocks of several hosts need not be equal. A link that is slow makes no rank late, and is not
    found. Calls on CUDA count from when they were enqueued.

    Args:
        group: the default group if None. If it has another backend, the one of "ring" on it, whose
            calls are looked at.
        last: how many of the group's last calls to look at, the same on all ranks. If not given,
            all that the ranks still have in their records: RINGCOMM_FLIGHT_RECORDS of each process,
            2,000 if that is not set.

    Returns:
        The same on all ranks, the worst first; empty if no rank is late.

    Raises:
        TypeError: `group` is not a process group, or `last` is not an integer.
        ValueError: this rank is not in the group, or the group is closed, or there is no default
            group; or `last` is not positive, or not the same on all ranks.
        RuntimeError: a rank records nothing, as RINGCOMM_FLIGHT_RECORDS is 0 there.
        OSError: the record cannot be written to the folder for temporary files.
        torch.distributed.DistBackendError: a rank did not call it in time.
    """
    return _on_ring(group, last)


def _stragglers(group: Any, last: int | None) -> list[Straggler]:
    # Whatever can fail on one rank alone comes before the first call.
    if last is not None and (not isinstance(last, int) or isinstance(last, bool)):
        raise TypeError(f"last must be an integer or None, got {type(last).__name__}")
    if last is not None and last < 1:
        raise ValueError(f"last must be positive, got {last}")
    host_of = {rank: host.name for host in topology(group).hosts for rank in host.ranks}
    own = (last, _packed(_calls_of(group)))
    gathered = [own] * dist.get_world_size(group)
    dist.all_gather_object(gathered, own, group)
    if len({each for each, _ in gathered}) > 1:
        raise ValueError(
            f"last must be the same on all ranks, got {[each for each, _ in gathered]}"
        )
    ranks = dist.get_process_group_ranks(group)
    by_rank = dict(zip(ranks, (_unpacked(*packed) for _, packed in gathered), strict=True))
    found = arrivals(list(_collectives(by_rank))[-last if last else None :])
    return [_straggler(late, found, host_of[late.rank]) for late in found.late]


def _calls_of(group: ProcessGroup) -> list[Call]:
    """The collectives of a group that have ended on this rank."""
    with tempfile.TemporaryDirectory(prefix="ringcomm-") as folder:
        record = read(Path(dump(f"{folder}/record")))
    return [
        call
        for call in record.calls
        if call.group == group.group_name and call.completed is not None and not call.is_message
    ]


def _packed(calls: list[Call]) -> tuple[list[Call], bytes]:
    """One call of each place in the program, and four numbers of each call."""
    first_at: dict[tuple[object, ...], int] = {}
    places: list[Call] = []
    numbers = array("q")
    for call in calls:
        place = first_at.setdefault((call.kind, call.frames), len(places))
        if place == len(places):
            places.append(call)
        assert call.completed is not None
        numbers.extend((place, call.sequence, call.created, call.completed))
    return places, numbers.tobytes()


def _unpacked(places: list[Call], numbers: bytes) -> dict[int, Call]:
    """The calls by their numbers in the group."""
    values = iter(array("q", numbers))
    return {
        sequence: replace(places[place], sequence=sequence, created=created, completed=completed)
        for place, sequence, created, completed in zip(values, values, values, values, strict=True)
    }


def _collectives(by_rank: Mapping[int, Mapping[int, Call]]) -> Iterator[Collective]:
    """Those that all ranks have in their records, in order."""
    for sequence in sorted(set.intersection(*(set(calls) for calls in by_rank.values()))):
        yield {rank: calls[sequence] for rank, calls in by_rank.items()}


def _straggler(late: Late[Call], found: Arrivals, host: str) -> Straggler:
    return Straggler(
        rank=late.rank,
        host=host,
        group=group_of(late.worst).removeprefix("group "),
        num_calls=found.num_calls,
        share_last=late.times_last / found.num_calls,
        waited_s=late.waited,
        elapsed_s=found.seconds,
        where=where_of(late.worst),
    )


_on_ring = on_ring(_stragglers, sends_objects=True)
