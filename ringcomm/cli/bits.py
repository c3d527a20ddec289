"""python -m ringcomm bits: the first collective whose result has other bits in another run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ringcomm.records import MOST_RECORDS, Call, Key, Record, read_run
from ringcomm.records.words import group_of, line_of, operation_of, shown, wrapped
from ringcomm.units import readable_ranks
from ringcomm.usage import FAILED, UsageError

_MOST_SHOWN = 8  # ranks whose digests are printed
_NAMES = "AB"  # of the runs
_SWITCH = "RINGCOMM_FLIGHT_DIGESTS=1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.description = (
        "Compares the flight records of two runs, call by call, and names the first collective "
        "whose result has other bits: its ranks, and its line in the script. Have each run write "
        f"its records, by TORCH_FR_DUMP_TEMP_FILE=FOLDER/rank_ and {_SWITCH}. The exit code is 0 "
        "if all results are equal, 1 if they differ or the runs make other calls, and 2 if the "
        "records cannot be compared."
    )
    parser.add_argument("run_a", type=Path, metavar="RUN_A", help="a folder of flight records")
    parser.add_argument("run_b", type=Path, metavar="RUN_B", help="that of the other run")


def run(options: argparse.Namespace) -> int:
    """Compares the runs and prints what it finds. Returns the exit code."""
    folders = options.run_a, options.run_b
    runs = [read_run(folder) for folder in folders]
    _check(folders, runs)
    ranks = {rank: _Pair(runs[0][rank], runs[1][rank]) for rank in runs[0]}
    if not any(pair.begin for pair in ranks.values()) and any(
        pair.is_overwritten for pair in ranks.values()
    ):
        raise UsageError(f"no call is in both records. {_keeping(ranks)}")
    key = _first(list(ranks.values()))
    lines = _equal(ranks) if key is None else _different(ranks, key)
    for text in (*lines, *_notes(ranks)):
        for line in wrapped(text):
            print(line)
    return 0 if key is None else FAILED


def _check(folders: Sequence[Path], runs: Sequence[Mapping[int, Record]]) -> None:
    for folder, records in zip(folders, runs, strict=True):
        if missing := [rank for rank, record in records.items() if not record.has_digests]:
            raise UsageError(
                f"{folder}: there are no digests of {readable_ranks(missing)}; set {_SWITCH} in "
                "both runs"
            )
    a, b = runs
    if a.keys() != b.keys():
        raise UsageError(
            f"the runs have different numbers of ranks: {folders[0]} has records of "
            f"{readable_ranks(list(a))}, {folders[1]} of {readable_ranks(list(b))}"
        )


class _Pair:
    """The two records of one rank.

    Attributes:
        records: of each run.
        place: of each call, in the order in which they were made; a call that both have comes once.
        begin: the first call that both records have.
        is_overwritten: whether one of them has lost its first calls.
        first: the first call that differs; None if there is none.
    """

    def __init__(self, *records: Record) -> None:
        self.records = records
        self._calls = [{call.key: call for call in record.calls} for record in records]
        self._oldest: list[dict[str, int]] = [{}, {}]
        for oldest, calls in zip(self._oldest, self._calls, strict=True):
            for group, sequence in calls:
                oldest[group] = min(sequence, oldest.get(group, sequence))
        self.place = self._placed()
        self.begin = next((a for key, a in self._calls[0].items() if key in self._calls[1]), None)
        self.is_overwritten = any(record.num_overwritten for record in records)
        self.first = next(filter(self.differs, self.place), None)

    def calls(self, key: Key) -> tuple[Call | None, Call | None]:
        """The call in each run; None where it has none."""
        a, b = self._calls
        return a.get(key), b.get(key)

    def differs(self, key: Key) -> bool:
        """Whether the runs make other calls here, or results differ."""
        a, b = self.calls(key)
        if a is None or b is None:
            return a is not b and not self._is_overwritten(key, 0 if a is None else 1)
        return a.kind != b.kind or _has_other_bits(a, b)

    def counts(self, end: Key | None) -> tuple[int, int]:
        """How many calls up to this one have equal results, and how many have none to compare."""
        equal = without = 0
        for key in self.place:
            if key in (end, self.first):
                break
            a, b = self.calls(key)
            if a is None or b is None:
                continue
            has_both = a.digest is not None and b.digest is not None
            equal, without = equal + has_both, without + (not has_both)
        return equal, without

    def in_place_of(self, key: Key, run: int) -> Call | None:
        """The first call of the run from this place on."""
        calls = self._calls[run]
        later = (other for other, place in self.place.items() if place >= self.place[key])
        return next((calls[other] for other in later if other in calls), None)

    def _placed(self) -> dict[Key, int]:
        a, b = self._calls
        places = {key: 2 * i for i, key in enumerate(a)}
        last = -1
        for key in b:
            last = places.setdefault(key, last | 1)  # behind what came before it, in that run
        return {key: i for i, key in enumerate(sorted(places, key=places.__getitem__))}

    def _is_overwritten(self, key: Key, run: int) -> bool:
        group, sequence = key
        oldest = self._oldest[run].get(group)
        is_older = oldest is None or sequence < oldest
        return self.records[run].num_overwritten > 0 and is_older


def _has_other_bits(a: Call, b: Call) -> bool:
    return a.digest is not None and b.digest is not None and a.digest != b.digest


def _first(pairs: Sequence[_Pair]) -> Key | None:
    """The first difference of all ranks.

    Where a rank has made two of the calls, its order counts. Clocks, which are those of several
    hosts, only decide what no rank knows.
    """
    keys = list(dict.fromkeys(pair.first for pair in pairs if pair.first is not None))

    def is_first(key: Key) -> bool:
        return not any(
            pair.place[other] < pair.place[key]
            for pair in pairs
            if key in pair.place
            for other in keys
            if other in pair.place
        )

    def created(key: Key) -> int:
        return min(call.created for pair in pairs for call in pair.calls(key) if call is not None)

    return min(list(filter(is_first, keys)) or keys, key=created, default=None)


def _equal(ranks: Mapping[int, _Pair]) -> Iterator[str]:
    equal, without = map(sum, zip(*(pair.counts(None) for pair in ranks.values()), strict=True))
    if equal == 0:
        raise UsageError("no result has a digest in both runs; results on GPUs have none")
    yield f"All bits are equal. Compared: {equal} results of {_ranks(ranks)}."
    if without:
        yield f"Calls without a result to compare, such as barriers, sends and objects: {without}."


def _different(ranks: Mapping[int, _Pair], key: Key) -> Iterator[str]:
    different = [rank for rank, pair in ranks.items() if pair.differs(key)]
    pair = ranks[different[0]]
    a, b = pair.calls(key)
    call = a or b
    assert call is not None  # what differs is in one of them
    where = f"#{call.sequence} of {group_of(call)}, on {readable_ranks(different)}"
    if a is not None and b is not None and a.kind == b.kind:
        yield f"The bits differ first in {operation_of(a)} {where}."
        yield ""
        yield from _digests(ranks, different, key)
        yield ""
        yield from _called_at(a, b)
    else:
        yield f"The runs make other calls from {where}, on."
        yield ""
        for run, name in enumerate(_NAMES):
            yield f"  {name}: {_made(pair.in_place_of(key, run), key)}"
    yield ""
    before = sum(pair.counts(key)[0] for pair in ranks.values())
    yield f"Equal before it: {before} results of {_ranks(ranks)}."


def _digests(ranks: Mapping[int, _Pair], different: Sequence[int], key: Key) -> Iterator[str]:
    yield "  rank  digest in A       digest in B"
    for rank in different[:_MOST_SHOWN]:
        a, b = (shown(call.digest or "") for call in ranks[rank].calls(key) if call is not None)
        yield f"  {rank:4}  {a:16}  {b}"
    if len(different) > _MOST_SHOWN:
        yield f"  and {len(different) - _MOST_SHOWN} more ranks"


def _called_at(a: Call, b: Call) -> Iterator[str]:
    lines = [line_of(a), line_of(b)]
    if lines[0] == lines[1]:
        yield f"Called {lines[0]}"
    else:
        yield from (f"Called in {name} {line}" for name, line in zip(_NAMES, lines, strict=True))


def _made(call: Call | None, key: Key) -> str:
    if call is None:
        return "no call any more"
    other = "" if call.key == key else f" #{call.sequence} of {group_of(call)}"
    return f"{operation_of(call)}{other}, {line_of(call)}"


def _notes(ranks: Mapping[int, _Pair]) -> Iterator[str]:
    """What the comparison does not cover."""
    known = {rank for pair in ranks.values() for record in pair.records for rank in record.ranks}
    if missing := sorted(known - ranks.keys()):
        yield f"There is no record of {readable_ranks(missing)}."
    for rank, pair in ranks.items():
        if pair.is_overwritten and (call := pair.begin):
            yield (
                f"Earlier calls were overwritten: on rank {rank} the comparison begins with "
                f"{operation_of(call)} #{call.sequence} of {group_of(call)}. {_keeping(ranks)}."
            )
            return


def _keeping(ranks: Mapping[int, _Pair]) -> str:
    records = [record for pair in ranks.values() for record in pair.records]
    needed = max(record.calls[-1].number + 1 for record in records if record.calls)
    kept = "all" if needed <= MOST_RECORDS else "more"
    return f"RINGCOMM_FLIGHT_RECORDS={min(needed, MOST_RECORDS)} keeps {kept}"


def _ranks(ranks: Mapping[int, _Pair]) -> str:
    return f"{len(ranks)} rank{'s' if len(ranks) > 1 else ''}"
