"""Which ranks and links make a group slow: what its ranks recorded, gathered by a call."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed import ProcessGroup

from ringcomm._delegate import on_ring
from ringcomm.flight import dump
from ringcomm.records import Call, read
from ringcomm.records.arrivals import Arrivals, Collective, Late, arrivals
from ringcomm.records.words import group_of, shown, where_of
from ringcomm.slow_links import Link, Meter, links_between, lost, slow_links, usual_rate
from ringcomm.topology import topology

_SLOWER = 1.1  # times the rate of a link that is to blame, if others have that rate

_meters: dict[str, Meter] = {}  # by the group's name


@dataclass(frozen=True)
class Straggler:
    """What the others of a group wait for: a rank, or a link of its host.

    Attributes:
        cause: "late" if it calls collectives later than the others; "link" if it comes in time, and
            what it sends to another host moves slowly.
        rank: in the default group. For a link, the rank that sends.
        host: the name of its host, as in `ringcomm.Topology`.
        group: the name of the group in flight records, and its description.
        num_calls: the collectives that were looked at.
        share_last: in which part of them this rank came last, from 0 to 1. For a link, 0.
        waited_s: seconds from the second last rank's call to this one's, over all calls in which
            this one came last. For a link, the same of the ranks that came last by it, or else the
            seconds that it was in use longer than it would have been at the rate of the others.
        elapsed_s: seconds from the first call to the last one. For a link, since the last look at
            the group's links, or since the process began.
        where: the line of the call for which the others waited most, such as "at train.py:8 in
            step", or the call alone if lines are not recorded (RINGCOMM_FLIGHT_STACKS=1). For a
            link, where it leads, and both rates.
    """

    cause: Literal["late", "link"]
    rank: int
    host: str
    group: str
    num_calls: int
    share_last: float
    waited_s: float
    elapsed_s: float
    where: str

    def __str__(self) -> str:
        rank = f"rank {self.rank} (host {self.host}, group {self.group})"
        of = f"{self.waited_s:.3g} s of {self.elapsed_s:.3g} s"
        if self.cause == "link":
            return f"{rank} has a slow link {self.where}; it cost {of}"
        return (
            f"{rank} came last in {self.share_last:.0%} of {self.num_calls:,} calls, the others "
            f"waited {of} for it; most {self.where}"
        )


def stragglers(group: ProcessGroup | None = None, *, last: int | None = None) -> list[Straggler]:
    """Says which ranks and links make a group slow.

    All ranks of the group call it. They send each other what they recorded, some 32 bytes for each
    call, so call it once in a while: after an epoch, or every thousand steps.

    Ranks are compared by the times at which they called the group's collectives, links between
    hosts by what the kernel counts of the ranks' TCP connections (tcp_info): bytes that arrived,
    and the time for which they were on their way.

    A rank is named if the group lost at least 1 % of its time to it, and if this is no accident: if
    all ranks come last equally often, a name comes up in less than one of 1,000 groups. Broadcasts,
    reduces, gathers, scatters and messages are not looked at, as they do not wait for all ranks.
    Clocks of several hosts need not be equal. Calls on CUDA count from when they were enqueued.

    A link is named in place of a rank that came last because what it receives arrived late, if the
    link to its host is slower than others. Any other link is named if its rate is below two thirds
    of the others' median, and the group lost at least 2 % of its time to it. Links that carried
    less than 1 MiB are not looked at, nor are those that are not TCP, or whose addresses are
    translated. If several links of one host are slow, the worst is named, as it delays what comes
    back on the others.

    Args:
        group: the default group if None. If it has another backend, the one of "ring" on it, whose
            calls are looked at.
        last: how many of the group's last calls to look at, the same on all ranks. If not given,
            all that the ranks still have in their records: RINGCOMM_FLIGHT_RECORDS of each process,
            2,000 if that is not set.

    Returns:
        The same on all ranks, the worst first; empty if none is slow.

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
    hosts = topology(group).hosts
    own = (last, _packed(_calls_of(group)), _meters.setdefault(group.group_name, Meter()).read())
    gathered = [own] * dist.get_world_size(group)
    dist.all_gather_object(gathered, own, group)
    wanted, packed, traffic = zip(*gathered, strict=True)
    if len({*wanted}) > 1:
        raise ValueError(f"last must be the same on all ranks, got {[*wanted]}")
    ranks = dist.get_process_group_ranks(group)
    by_rank = dict(zip(ranks, (_unpacked(*each) for each in packed), strict=True))
    found = arrivals(list(_collectives(by_rank))[-last if last else None :])
    host_of = {rank: host for host, each in enumerate(hosts) for rank in each.ranks}
    names = {rank: hosts[host].name for rank, host in host_of.items()}
    links = links_between(dict(zip(ranks, traffic, strict=True)), host_of)
    known = _Group(group, found, links, host_of, names)
    return _named(known)


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


@dataclass(frozen=True)
class _Group:
    """What is known of a group: its calls, its links between hosts, and its ranks' hosts."""

    group: ProcessGroup
    found: Arrivals
    links: list[Link]
    host_of: Mapping[int, int]
    host_names: Mapping[int, str]


def _named(known: _Group) -> list[Straggler]:
    """The worst first, each link once, however many ranks are late by it."""
    slow: list[Straggler] = []
    cost: dict[Link, tuple[float, float]] = {}  # seconds, and of how many
    for late in known.found.late:
        if link := _to_blame(late, known):
            waited, _ = cost.get(link, (0.0, 0.0))
            cost[link] = waited + late.waited, known.found.seconds
        else:
            slow.append(_late(late, known))
    for link in slow_links(known.links, known.host_of):
        cost.setdefault(link, (lost(link, known.links), link.elapsed))
    slow += [_slow_link(link, *of, known) for link, of in cost.items()]
    return sorted(slow, key=lambda each: -each.waited_s)


def _to_blame(late: Late[Call], known: _Group) -> Link | None:
    """The link to its host, if the rank came in time once its transfers had ended."""
    if 2 * late.transferred <= late.waited:
        return None
    host = known.host_of[late.rank]
    into = [each for each in known.links if known.host_of[each.target] == host]
    link = min(into, key=lambda each: each.rate, default=None)
    return link if link and link.rate * _SLOWER < usual_rate(link, known.links) else None


def _late(late: Late[Call], known: _Group) -> Straggler:
    return Straggler(
        cause="late",
        rank=late.rank,
        host=known.host_names[late.rank],
        group=group_of(late.worst).removeprefix("group "),
        num_calls=known.found.num_calls,
        share_last=late.times_last / known.found.num_calls,
        waited_s=late.waited,
        elapsed_s=known.found.seconds,
        where=where_of(late.worst),
    )


def _slow_link(link: Link, waited: float, elapsed: float, known: _Group) -> Straggler:
    rates = (link.rate, usual_rate(link, known.links))
    own, others = (f"{rate / 1e6:.3g} MB/s" for rate in rates)
    return Straggler(
        cause="link",
        rank=link.source,
        host=known.host_names[link.source],
        group=shown(f"{known.group.group_name} ({known.group.group_desc})"),
        num_calls=known.found.num_calls,
        share_last=0.0,
        waited_s=waited,
        elapsed_s=elapsed,
        where=f"to rank {link.target} (host {known.host_names[link.target]}): {own}, where others "
        f"have {others}",
    )


_on_ring = on_ring(_stragglers, sends_objects=True)
