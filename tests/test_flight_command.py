"""`python -m ringcomm flight`: which call did not end, who has not called it, and who is late."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from flight_records import HANGS, entry, write
from programs import python

from ringcomm.cli import main

LATE = """
import time
import torch
import torch.distributed as dist
import ringcomm
dist.init_process_group("ring")
for step in range(30):
    time.sleep(0.03 if dist.get_rank() == 1 else 0.005)
    gradients = torch.ones(1000)
    dist.all_reduce(gradients)
    dist.all_reduce(gradients[:3])
ringcomm.dump()
"""


def told(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[int, str]:
    """The exit code, and what is printed without its line breaks."""
    try:
        code = main(["flight", str(folder)])
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code
    captured = capsys.readouterr()
    assert not [line for line in captured.out.splitlines() if len(line) > 80]
    return code, re.sub(r"\s+", " ", captured.out or captured.err)


def run(tmp_path: Path, program: str, world_size: int) -> Path:
    script = tmp_path / "train.py"
    script.write_text(program)
    python(
        *("-m", "torch.distributed.run", "--nproc-per-node", str(world_size), script),
        TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/records/rank_",
        RINGCOMM_FLIGHT_STACKS="1",
        timeout=100,
    )
    return tmp_path / "records"


def test_a_rank_that_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, run(tmp_path, HANGS, 3))
    assert code == 1
    lines = HANGS.splitlines()
    called, last = (lines.index(f"dist.all_reduce(torch.ones({count}))") + 1 for count in (1000, 3))
    for expected in (
        "Rank 2 has not called all_reduce(count=1000, dtype=float32) #2 of group 0 (default_pg).",
        "Ranks 0 and 1 called it, first at 20",
        f"ranks 0 and 1: all_reduce(count=1000, dtype=float32), at {tmp_path}/train.py:{called} in",
        "What rank 2 called last: rank 2: all_reduce(count=3, dtype=float32) #1 of group 0 "
        f"(default_pg), which ended, at {tmp_path}/train.py:{last} in",
    ):
        assert expected in text


def test_a_rank_that_is_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, run(tmp_path, LATE, 2))
    assert code == 0
    line = LATE.splitlines().index("    dist.all_reduce(gradients)") + 1
    assert text.startswith("All calls of 2 ranks ended. Rank 1 is late: the others waited ")
    assert re.search(
        rf"most at {tmp_path}/train.py:{line} in <module>. It came last in [3-6]\d", text
    )
    assert "of 60 calls of group 0 (default_pg)." in text


def test_a_rank_that_is_late_by_its_transfers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step, late = 20_000_000, 3_000_000  # nanoseconds
    records: list[list[dict[str, Any]]] = [[], []]
    for number in range(30):
        for rank, own in enumerate(records):
            came = number * step + rank * late * (number > 0)
            ended = number * step + 5_000_000 + rank * late
            times = {"time_created_ns": came, "time_discovered_completed_ns": ended}
            own.append(entry(number + 1, **times))
    code, text = told(capsys, write(tmp_path / "run", *records))
    assert code == 0
    assert "Rank 1 is late: the others waited 0.087 s of 0.583 s for it" in text
    assert "Not its program: the call before had ended later on it, too." in text


def pending(sequence: int, **fields: Any) -> dict[str, Any]:
    return entry(sequence, time_discovered_completed_ns=None, **fields)


def test_different_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, one = entry(1, frames=[]), pending(2, frames=[])
    other = pending(2, frames=[], profiling_name="nccl:barrier")
    code, text = told(capsys, write(tmp_path / "run", [first, one], [first, other]))
    assert code == 1
    assert text.startswith("Ranks made different calls as #2 of group 0 (default_pg), at 19")
    assert "rank 0: all_reduce(count=3, dtype=float32), at a line that was not recorded" in text
    assert "rank 1: barrier(count=3" in text
    assert "RINGCOMM_FLIGHT_STACKS=1 records the lines" in text


def test_all_have_called_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, write(tmp_path / "run", [pending(1)], [pending(1)]))
    assert code == 1
    assert "#1 of group 0 (default_pg) ended on no rank, and all have called it" in text


def test_records_of_other_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call that has ended on a rank was called by all, whatever they had recorded before."""
    ranks = [[entry(1)], [entry(1), entry(2), entry(3)], [entry(1), pending(2)]]
    code, text = told(capsys, write(tmp_path / "run", *ranks))
    assert code == 0 and text.startswith("All calls of 3 ranks ended.")


def test_a_refused_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [entry(1), pending(2), entry(3)]
    code, _ = told(capsys, write(tmp_path / "run", calls, calls))
    assert code == 0


def test_a_message_that_is_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = ("0 0->1", "default_pg")
    received = pending(
        1, profiling_name="nccl:recv 1<-0", is_p2p=True, process_group=group, record_id=1
    )
    groups = {"0 0->1": "[0, 1]"}
    code, text = told(capsys, write(tmp_path / "run", [entry(1)], [entry(1), received], **groups))
    assert code == 1
    assert "Rank 0 has not called recv(count=3, dtype=float32) #1 of group 0 0->1" in text


def test_a_rank_without_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", [entry(1), pending(2)], [entry(1), pending(2)], [])
    (folder / "rank_2").unlink()
    code, text = told(capsys, folder)
    assert code == 1
    assert "#2 of group 0 (default_pg) ended on no rank, and all but rank 2 have called it" in text
    assert "has not called" not in text and "There is no record of rank 2." in text


def test_what_is_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", [entry(1)])
    (folder / "rank_0").write_bytes(struct.pack("<q", 7))
    code, text = told(capsys, folder)
    assert code == 2 and "no flight record of ringcomm's, or damaged" in text
