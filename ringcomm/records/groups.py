"""The calls of a job by their groups: which ranks have made which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringcomm.records import Call, Record
from ringcomm.records.arrivals import Collective


def by_group(records: Mapping[int, Record]) -> dict[str, dict[int, dict[int, Call]]]:
    """The calls by group, sequence number and rank."""
    groups: dict[str, dict[int, dict[int, Call]]] = {}
    for rank, record in records.items():
        for call in record.calls:
            if call.sequence:  # the sender of a message from any rank may not be known
                groups.setdefault(call.group, {}).setdefault(call.sequence, {})[rank] = call
    return groups


def members(records: Mapping[int, Record], group: str) -> list[int]:
    """The ranks of a group."""
    return sorted({rank for each in records.values() for rank in each.members.get(group, ())})


def ended_everywhere(
    calls: Mapping[int, Collective], ranks: Sequence[int]
) -> dict[int, Collective]:
    """The collectives of a group, by number, that have ended on all of its ranks."""
    return {
        sequence: by_rank
        for sequence, by_rank in calls.items()
        if sorted(by_rank) == list(ranks)
        and not any(call.is_message or call.completed is None for call in by_rank.values())
    }
