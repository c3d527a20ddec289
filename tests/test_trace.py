"""Traces of all ranks as Perfetto reads them: by the command, and by the script for GPUs."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest
from programs import python

from ringcomm.cli.trace_rank import Record, contents, merged

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ["-m", "ringcomm", "trace"]
SCRIPT = [str(ROOT / "benchmarks" / "profile" / "trace.py")]


def run(command: list[str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python(*command, *arguments, cwd=cwd, timeout=100)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "name"), [(COMMAND, None), (SCRIPT, "out.json.gz")])
def test_trace(command: list[str], name: str | None, tmp_path: Path) -> None:
    """Chrome's format: events with a name, phase, process and time, of every rank on one clock."""
    output = tmp_path / (name or "ringcomm_trace.json")
    chosen = ["-o", name] if name else []
    what = ["--nproc", "2", "--size", "1M", "--iters", "2"]
    result = run(command, *what, *chosen, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert f"wrote {output}: 2 ranks" in result.stdout
    assert "open it at https://ui.perfetto.dev" in result.stdout
    assert list(tmp_path.iterdir()) == [output]

    written = output.read_bytes()
    document = json.loads(gzip.decompress(written) if output.suffix == ".gz" else written)
    events = document["traceEvents"]
    for event in events:
        assert isinstance(event["name"], str) and len(event["ph"]) == 1
        assert event["pid"] in (0, 1)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    assert min(event["ts"] for event in events if "ts" in event) == 0
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    spans = []
    for rank in range(2):
        mine = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        outer = [event for event in mine if event["name"] == "ring:all_reduce"]
        steps = [event for event in mine if event["name"].startswith("step ")]
        assert len(outer) == 2 and steps
        assert all(
            any(o["ts"] <= s["ts"] and s["ts"] + s["dur"] <= o["ts"] + o["dur"] + 1 for o in outer)
            for s in steps
        )
        spans.append([(event["ts"], event["ts"] + event["dur"]) for event in outer])
    # On one clock: the ranks' all-reduces overlap.
    for (begin, end), (other_begin, other_end) in zip(*spans, strict=True):
        assert max(begin, other_begin) < min(end, other_end)


def test_clocks_that_begin_at_different_times() -> None:
    """Rank 1's microseconds count from 5 µs later than rank 0's."""

    def record(rank: int, base: int, ts: float) -> Record:
        return Record(base, [{"ph": "X", "name": "it", "pid": rank, "ts": ts, "dur": 1}])

    base = 1_800_000_000_000_000_000
    first, second = merged([record(0, base, 10.25), record(1, base + 5000, 7.5)])
    assert first["ts"] == 0
    assert second["ts"] == 7.5 + 5 - 10.25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "ring.html"], "must end in .json or .json.gz, got 'ring.html'"),
        (["-o", "nowhere/ring.json"], "there is no folder"),
        (["--nproc", "0"], "must be an integer from 1, got '0'"),
        (["--algorithm", "tree"], "--algorithm must be one of auto, ring,"),
    ],
)
def test_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from ringcomm.cli import main

    try:
        code = main(["trace", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert words in capsys.readouterr().err


def test_what_is_counted_are_kernels_where_there_are_any() -> None:
    events = [{"name": "step 0"}, {"name": "step 0"}, {"name": "step 1"}, {"name": "all_reduce"}]
    assert contents(events) == "2 steps and slices"
    assert contents([*events, {"name": "step", "cat": "kernel"}]) == "1 kernels"
