"""torchrun restarts a job three times: the last attempt succeeds, and waits for no time-out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from faults import restarted
from faults.record import Record, times

ROOT = Path(__file__).resolve().parents[2]
SOON = 240.0  # seconds for four attempts to import torch on a busy host; the time-out is 30 minutes


def one_job(directory: Path) -> float:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "3", "--max-restarts", "3", "--monitor-interval", "0.1"]
    command += [restarted.__file__, str(directory)]
    began = time.monotonic()
    job = subprocess.run(
        command, env=environment, timeout=SOON, capture_output=True, text=True, check=False
    )
    assert job.returncode == 0, job.stderr[-5000:]
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        str(rank): "3" for rank in range(3)
    }
    return time.monotonic() - began


def test_restarts(record: Record, tmp_path: Path) -> None:
    jobs = record.scale(1, 4)
    seconds = []
    for job in range(jobs):
        directory = tmp_path / str(job)
        directory.mkdir()
        seconds.append(one_job(directory))
    record.write(
        jobs=jobs,
        deaths_of_each=3,
        completed_in_the_fourth_attempt=len(seconds),
        whole_job=times(seconds),
    )
