"""A rank that waits leaves the processor to others."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm

WAIT = 1.5  # seconds


def waits_for_centuries(rank: Rank, days: int) -> list[float]:
    longest = timedelta(days=days)
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size, timeout=longest
    )
    tensor = torch.ones(10)
    if rank.rank == 1:
        time.sleep(WAIT)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait(longest)
    if rank.rank == 1:
        time.sleep(WAIT)
    dist.all_reduce(tensor)
    peer = 1 - rank.rank
    if rank.rank == 1:
        time.sleep(WAIT)
        dist.send(tensor, peer)
    else:
        dist.irecv(tensor, peer).wait(longest)
    return tensor.tolist()


@pytest.mark.parametrize("days", [10**5, 10**6, 10**8])
def test_the_longest_waits_are_not_over_at_once(days: int) -> None:
    assert on_processes(waits_for_centuries, 2, days) == [[4.0] * 10] * 2


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
