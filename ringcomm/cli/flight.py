"""python -m ringcomm flight: what the flight records of a job's ranks say, in words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from ringcomm.cli.traces import trace_file, write_trace
from ringcomm.records import Call, Record, read_run
from ringcomm.records.arrivals import Arrivals, Collective, Late, arrivals
from ringcomm.records.groups import by_group, ended_everywhere, members
from ringcomm.records.timeline import timeline
from ringcomm.records.words import group_of, line_of, operation_of, where_of, wrapped
from ringcomm.units import capital, readable_ranks
from ringcomm.usage import FAILED

_FEWEST_CALLS = 10  # of which a rank is said to be on time
_NO_LINE = "RINGCOMM_FLIGHT_STACKS=1 records the lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.description = (
        "Reads the flight records of a job's ranks. It says which call did not end, which ranks "
        "have not called it, and which ranks the others often waited for. Have the ranks write "
        "their records, by TORCH_FR_DUMP_TEMP_FILE=FOLDER/rank_. The exit code is 0 if all calls "
        "ended, 1 if one did not, and 2 if the records cannot be read."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the flight records")
    parser.add_argument(
        "--trace",
        type=trace_file,
        metavar="FILE",
        help="also write all calls and waits, on one clock, as a trace for Perfetto (.json or "
        ".json.gz)",
    )


def run(options: argparse.Namespace) -> int:
    """Prints what the records say. Returns the exit code."""
    records = read_run(options.folder)
    groups = by_group(records)
    pending = {name: found for name, calls in groups.items() if (found := _pending(calls))}
    by_time = sorted(pending, key=lambda name: min(c.created for c in pending[name].values()))
    texts: list[str] = []
    for name in by_time:
        texts += [*_describe_pending(records, name, pending[name]), ""]
    if not pending:
        texts += [f"All calls of {_records(records)} ended.", ""]
    for name, calls in groups.items():
        texts += _describe_arrivals(records, name, calls)
    texts += _notes(records)
    for text in texts:
        for row in wrapped(text):
            print(row)
    if options.trace is not None:
        num_calls = sum(len(record.calls) for record in records.values())
        write_trace(options.trace, timeline(records), f"{_records(records)}, {num_calls} calls")
    return FAILED if pending else 0


def _pending(calls: Mapping[int, Collective]) -> Collective | None:
    """The first call that ended on no rank, nor any later one.

    Where a rank has ended it, the others were only written down earlier; and where ranks have ended
    a later one, this one was refused.
    """
    ended = (
        sequence
        for sequence, by_rank in calls.items()
        if any(call.completed is not None for call in by_rank.values())
    )
    last = max(ended, default=0)
    return calls[min(later)] if (later := [each for each in calls if each > last]) else None


def _describe_pending(records: Mapping[int, Record], name: str, calls: Collective) -> Iterator[str]:
    first = min(calls.values(), key=lambda call: call.created)
    absent = [rank for rank in members(records, name) if rank not in calls]
    missing = [rank for rank in absent if rank in records]
    unknown = [rank for rank in absent if rank not in records]
    called = f"{operation_of(first)} #{first.sequence} of {group_of(first)}"
    since = datetime.fromtimestamp(first.created / 1e9).isoformat(" ", "seconds")
    if missing:
        have = "has" if len(missing) == 1 else "have"
        yield f"{capital(readable_ranks(missing))} {have} not called {called}."
        yield f"{capital(readable_ranks(list(calls)))} called it, first at {since}:"
    elif len({call.kind for call in calls.values()}) > 1 and not first.is_message:
        yield f"Ranks made different calls as #{first.sequence} of {group_of(first)}, at {since}:"
    else:
        have = f"all but {readable_ranks(unknown)}" if unknown else "all"
        yield f"{capital(called)} ended on no rank, and {have} have called it, first at {since}:"
    yield from _places(calls)
    known = {rank: records[rank].calls[-1] for rank in missing if records[rank].calls}
    if known:
        yield "What they called last:" if len(known) > 1 else f"What rank {min(known)} called last:"
        for rank, call in known.items():
            ended = "ended" if call.completed is not None else "has not ended"
            yield (
                f"  rank {rank}: {operation_of(call)} #{call.sequence} of {group_of(call)}, which "
                f"{ended}, {line_of(call)}"
            )


def _places(calls: Collective) -> Iterator[str]:
    """Which ranks made which call where; equal ones in one line."""
    places: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        places.setdefault(f"{operation_of(call)}, {line_of(call)}", []).append(rank)
    for place, ranks in places.items():
        yield f"  {readable_ranks(ranks)}: {place}"


def _describe_arrivals(
    records: Mapping[int, Record], name: str, calls: Mapping[int, Collective]
) -> Iterator[str]:
    complete = list(ended_everywhere(calls, members(records, name)).values())
    found = arrivals(complete)
    if found.num_calls < _FEWEST_CALLS:
        return
    group = group_of(next(iter(complete[0].values())))
    for each in found.late:
        yield _late(each, found, group)
    if not found.late:
        yield (
            f"No rank of {group} was late too often: in {found.num_calls} calls, "
            f"{_of_time(found.waited, found)} were spent waiting for whoever came last."
        )


def _late(late: Late[Call], found: Arrivals, group: str) -> str:
    why = " Not its program: the call before had ended later on it, too."
    return (
        f"Rank {late.rank} is late: the others waited {_of_time(late.waited, found)} for it, most "
        f"{where_of(late.worst)}. It came last in {late.times_last} of {found.num_calls} calls of "
        f"{group}.{why if 2 * late.transferred > late.waited else ''}"
    )


def _of_time(waited: float, found: Arrivals) -> str:
    return f"{waited:.3g} s of {found.seconds:.3g} s"


def _notes(records: Mapping[int, Record]) -> Iterator[str]:
    """What the records do not say."""
    known = {rank for record in records.values() for rank in record.ranks}
    if missing := sorted(known - records.keys()):
        yield f"There is no record of {readable_ranks(missing)}."
    calls = [call for record in records.values() for call in record.calls]
    if calls and not any(call.frames for call in calls):
        yield f"Where calls were made was not recorded: {_NO_LINE}."


def _records(records: Mapping[int, Record]) -> str:
    return f"{len(records)} rank{'s' * (len(records) > 1)}"
