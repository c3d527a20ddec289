"""The trace of flight records: who called what when, and which rank each call waited for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flight_records import entry, write

from ringcomm.cli import main
from ringcomm.records import read_run
from ringcomm.records.timeline import Event, timeline

US = 1000  # nanoseconds of one of the trace's units


def call(sequence: int, begin: int, end: int | None, **fields: Any) -> dict[str, Any]:
    """From one microsecond to another, or not ended."""
    completed = None if end is None else end * US
    times = {"time_created_ns": begin * US, "time_discovered_completed_ns": completed}
    return entry(sequence, **times, **fields)


def spans(events: Iterable[Event], rank: int) -> list[tuple[str, float, float]]:
    """Names, begins and ends."""
    return [
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["ph"] == "X" and event["pid"] == rank
    ]


def of(folder: Path) -> list[Event]:
    return timeline(read_run(folder))


ALL_REDUCE = "all_reduce(count=3, dtype=float32)"


def test_a_call_waits_for_the_last_rank(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [call(1, 100, 160)], [call(1, 150, 161)], [call(1, 120, 162)])
    events = of(folder)
    assert spans(events, 0) == [(ALL_REDUCE, 0, 60), ("waits for rank 1", 0, 50)]
    assert spans(events, 1) == [(ALL_REDUCE, 50, 61)]
    assert spans(events, 2) == [(ALL_REDUCE, 20, 62), ("waits for rank 1", 20, 50)]
    named = next(event for event in events if event["name"] == ALL_REDUCE)
    assert named["args"] == {
        "number": 1,
        "group": "group 0 (default_pg)",
        "where": "at /home/me/train.py:7 in step",
    }


def test_clocks_of_hosts_are_compared(tmp_path: Path) -> None:
    ahead = 1_000_000
    mine = [call(1, 100, 160), call(2, 200, 251)]
    other = [call(1, ahead + 150, ahead + 160), call(2, ahead + 165, ahead + 250)]
    events = of(write(tmp_path / "run", mine, other))
    (_, begin, _), *_ = spans(events, 0)
    (_, later, _), *_ = spans(events, 1)
    assert 39 <= later - begin <= 60  # 50; the shortest call leaves 10 open
    assert "waits for rank 1" in [name for name, *_ in spans(events, 0)]
    assert "waits for rank 0" in [name for name, *_ in spans(events, 1)]


def test_what_has_not_ended_reaches_the_end(tmp_path: Path) -> None:
    first = call(1, 100, 300)
    folder = write(tmp_path / "run", [first, call(2, 310, None)], [first], [first])
    found = spans(of(folder), 0)
    (_, begin, end), (wait, *_) = found[-2:]
    assert [name for name, *_ in found] == [ALL_REDUCE, f"{ALL_REDUCE}, not ended", wait]
    assert wait == "waits for ranks 1 and 2"
    assert (begin, end) == (210, pytest.approx(210 * 1.05))


def test_calls_that_overlap_have_threads_of_their_own(tmp_path: Path) -> None:
    calls = [call(1, 100, 200), call(2, 110, 300), call(3, 200, 250)]
    message = call(
        1, 260, 270, profiling_name="nccl:send 0->1", is_p2p=True,
        process_group=("0 0->1", "default_pg"), record_id=3,
    )  # fmt: skip
    events = of(write(tmp_path / "run", [*calls, message], calls, **{"0 0->1": "[0, 1]"}))
    own = [event for event in events if event["pid"] == 0]
    assert [event["tid"] for event in own if event["ph"] == "X"] == [0, 1, 0, 2]
    names = {event["tid"]: event["args"]["name"] for event in own if event["name"] == "thread_name"}
    assert names == {
        0: "group 0 (default_pg)",
        1: "group 0 (default_pg)",
        2: "group 0 0->1 (default_pg)",
    }


def test_a_broadcast_waits_for_nobody(tmp_path: Path) -> None:
    """So it says nothing of clocks either: its root ends it before the others call."""
    ranks = (
        [call(1, *times, profiling_name="nccl:broadcast"), call(2, 200, 210)]
        for times in ((100, 110), (150, 160))
    )
    events = of(write(tmp_path / "run", *ranks))
    assert [begin for _, begin, _ in spans(events, 0)] == [0, 100]
    assert [begin for _, begin, _ in spans(events, 1)] == [50, 100]


def test_records_without_calls(tmp_path: Path) -> None:
    assert of(write(tmp_path / "run", [], [])) == []


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_command_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = write(tmp_path / "run", [call(1, 100, 160)], [call(1, 150, 161)])
    assert main(["flight", str(folder), "--trace", str(tmp_path / name)]) == 0
    assert f"wrote {tmp_path / name}: 2 ranks, 2 calls" in capsys.readouterr().out
    content = (tmp_path / name).read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    assert json.loads(text)["traceEvents"] == of(folder)


def test_another_suffix_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", [call(1, 100, 160)])
    with pytest.raises(SystemExit):
        main(["flight", str(folder), "--trace", "trace.txt"])
    assert "must end in .json or .json.gz" in capsys.readouterr().err
