"""Plans as a table of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from ringcomm._C.plan import Step, Transfer

_HEADER = ("step", "rank", "sends", "receives", "")
_Row = tuple[str, str, str, str, str]


def table(steps: Iterable[Mapping[int, Step]], phases: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yields the lines of a table of what each rank sends and receives in each step.

    Args:
        steps: for each step the `Step` of each rank that has one.
        phases: names of consecutive parts with their numbers of steps, shown as headings.
    """
    blocks = [
        [row for rank, step in sorted(ranks.items()) for row in _rows(index, rank, step)]
        for index, ranks in enumerate(steps)
    ]
    if not blocks:
        return
    rows = [_HEADER, *chain.from_iterable(blocks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    headings = _headings(phases)
    yield ""
    yield _line(_HEADER, widths)
    for index, block in enumerate(blocks):
        yield ""
        if index in headings:
            yield headings[index]
        for row in block:
            yield _line(row, widths)


def _headings(phases: Sequence[tuple[str, int]]) -> dict[int, str]:
    """The heading above the first step of each phase."""
    headings = {}
    first = 0
    for name, num_steps in phases:
        headings[first] = name
        first += num_steps
    return headings


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = [text.rjust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
    texts = [text.ljust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join((*numbers, *texts)).rstrip()


def _rows(index: int, rank: int, step: Step) -> Iterator[_Row]:
    """One row per range of chunks that the rank sends or receives in this step."""
    sends = [
        f"{_chunks(transfers[0])} -> {_ranks(transfers)}" for transfers in _grouped(step.sends)
    ]
    recvs = [
        (f"{_chunks(transfers[0])} <- {_ranks(transfers)}", _action(transfers[0]))
        for transfers in _grouped(step.recvs)
    ]
    place = (str(index), str(rank))
    for send, recv in zip_longest(sends, recvs):
        yield (*place, send or "", *(recv or ("", "")))
        place = ("", "")


def _grouped(transfers: Iterable[Transfer]) -> Iterable[list[Transfer]]:
    """The transfers of one range of chunks together: a publication, or a sum of several inputs."""
    groups: dict[tuple[int, int, bool], list[Transfer]] = {}
    for transfer in transfers:
        key = (transfer.first_chunk, transfer.num_chunks, transfer.reduce)
        groups.setdefault(key, []).append(transfer)
    return groups.values()


def _action(transfer: Transfer) -> str:
    if transfer.num_chunks == 0:
        return "wait"
    return "reduce" if transfer.reduce else "copy"


def _chunks(transfer: Transfer) -> str:
    if transfer.num_chunks == 0:
        return "signal"
    first, last = transfer.first_chunk, transfer.first_chunk + transfer.num_chunks - 1
    return f"chunk {first}" if first == last else f"chunks {first}-{last}"


def _ranks(transfers: Iterable[Transfer]) -> str:
    return ranks(transfer.peer for transfer in transfers)


def ranks(numbers: Iterable[int]) -> str:
    """Ranks with runs of them shortened: "rank 3", "ranks 0-2, 5"."""
    return numbered("rank", numbers)


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """Numbers of such things, with runs of them shortened."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"{noun} {text}" if len(ordered) == 1 else f"{noun}s {text}"
