"""A rank that waits leaves the processor to others."""

from __future__ import annotations

import time

import torch
from ranks import Rank, on_processes

import ringcomm

WAIT = 1.5  # seconds


def cpu_seconds_of_a_wait(rank: Rank) -> float:
    tensor = torch.ones(10)
    ringcomm.all_reduce(tensor)
    if rank.rank == 1:
        time.sleep(WAIT)
    began = time.thread_time()
    ringcomm.all_reduce(tensor)
    return time.thread_time() - began


def test_a_long_wait_takes_little_cpu_time() -> None:
    """2 to 4 % where the machine is idle."""
    assert on_processes(cpu_seconds_of_a_wait, 2, backend="ring")[0] < WAIT / 5
