"""Many operations of all kinds: memory, descriptors and threads stay as they were."""

from __future__ import annotations

import os
import random
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import ringcomm
from faults.crew import Crew, Mate, Meeting, meeting
from faults.record import Record

WORLD_SIZE = 4
LONGEST = 2700.0  # seconds; what is done by then is what counts
SAMPLES = 50
PATIENCE = LONGEST + 600.0
# Allocators keep some of what they have freed.
MOST_GROWTH = 2 << 20  # bytes of each rank
# A completion that is still running when the next one comes has another thread made for that.
MOST_THREADS = 2


@dataclass
class Sample:
    """What a rank holds."""

    operations: int
    own_nbytes: int
    shared_nbytes: int
    descriptors: int
    threads: int


def sample(operations: int) -> Sample:
    status = Path("/proc/self/status").read_text()
    own, shared = (
        int(re.search(rf"^{field}:\s*(\d+) kB$", status, re.M)[1]) << 10
        for field in ("RssAnon", "RssShmem")
    )
    descriptors = len(os.listdir("/proc/self/fd"))
    return Sample(operations, own, shared, descriptors, len(os.listdir("/proc/self/task")))


class Work:
    """The operations, each with how many of them a call counts as."""

    def __init__(self, mate: Mate) -> None:
        self.rank, self.n = mate.rank, mate.world_size
        self.right, self.left = (self.rank + 1) % self.n, (self.rank - 1) % self.n
        self.part = dist.new_group([0, 2])
        self.small, self.large = torch.zeros(64), torch.zeros(100_000)
        self.all_small = torch.zeros(64 * self.n)
        frequent: list[Callable[[], int]] = [self.reduce, self.direct, self.gather, self.scatter]
        frequent += [self.broadcast, self.exchange, self.messages, self.under_way, self.of_a_part]
        seldom = [self.meet, self.much, self.objects, self.coalesced, self.refused]
        self.calls = frequent * 20 + seldom

    def reduce(self) -> int:
        dist.all_reduce(self.small)
        return 1

    def direct(self) -> int:
        for _ in range(4):
            ringcomm.all_reduce(self.small)
        return 4

    def gather(self) -> int:
        ringcomm.all_gather_into_tensor(self.all_small, self.small)
        return 1

    def scatter(self) -> int:
        dist.reduce_scatter_tensor(self.small, self.all_small)
        return 1

    def broadcast(self) -> int:
        ringcomm.broadcast(self.small, 1)
        return 1

    def exchange(self) -> int:
        dist.all_to_all_single(torch.empty_like(self.all_small), self.all_small)
        return 1

    def messages(self) -> int:
        work = ringcomm.isend(self.small, self.right)
        ringcomm.recv(torch.empty_like(self.small), self.left)
        work.wait()
        return 2

    def under_way(self) -> int:
        works = [dist.all_reduce(torch.zeros(8), async_op=True) for _ in range(8)]
        for work in reversed(works):
            work.wait()
        return 8

    def of_a_part(self) -> int:
        if self.rank in (0, 2):
            dist.all_reduce(self.small, group=self.part)
        return 1

    def meet(self) -> int:
        dist.barrier()
        return 1

    def much(self) -> int:
        dist.all_reduce(self.large)
        return 1

    def objects(self) -> int:
        dist.all_gather_object([None] * self.n, {"rank": self.rank})
        return 1

    def coalesced(self) -> int:
        with dist._coalescing_manager():
            for tensor in self.all_small.split(64)[:3]:
                dist.all_reduce(tensor)
        return 3

    def refused(self) -> int:
        op = dist.ReduceOp.BAND if self.rank == 1 else dist.ReduceOp.SUM
        with pytest.raises(ValueError if self.rank == 1 else dist.DistBackendError):
            dist.all_reduce(self.small, op)
        return 1

    def group(self) -> int:
        group = dist.new_group()
        dist.all_reduce(self.large, group=group)
        dist.destroy_process_group(group)
        return 1


def works(mate: Mate, place: Meeting, operations: int) -> None:
    dist.init_process_group(
        "ring",
        store=place.store(mate.world_size),
        rank=mate.rank,
        world_size=mate.world_size,
        timeout=timedelta(minutes=5),
    )
    work = Work(mate)
    draw = random.Random(0)
    samples: list[Sample] = []
    done = 0
    began = time.monotonic()
    goes_on = torch.ones(1)
    while goes_on[0] and done < operations:
        until = min(operations, done + max(1, operations // SAMPLES))
        work.group()
        while done < until:
            done += draw.choice(work.calls)()
        samples.append(sample(done))
        goes_on[0] = float(time.monotonic() - began < LONGEST)
        dist.broadcast(goes_on, 0)
    mate.say((samples, time.monotonic() - began))
    dist.destroy_process_group()


def growth(samples: list[Sample], what: str) -> int:
    """From the second fifth of the time to the last, by their medians."""
    fifth = max(1, len(samples) // 5)
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    medians = [statistics.median(getattr(one, what) for one in part) for part in (early, late)]
    return round(medians[1] - medians[0])


def test_soak(record: Record) -> None:
    operations = record.scale(5_000, 1_000_000)
    with meeting(of_file=False) as place, Crew(works, WORLD_SIZE, place, operations) as crew:
        said = crew.hear_all(range(WORLD_SIZE), PATIENCE)
        assert crew.ended() == [0] * WORLD_SIZE
    by_rank = [samples for samples, _ in said.values()]
    grown = {
        what: [growth(samples, what) for samples in by_rank]
        for what in ("own_nbytes", "shared_nbytes", "descriptors", "threads")
    }
    last = [samples[-1] for samples in by_rank]
    record.write(
        operations=last[0].operations,
        ranks=WORLD_SIZE,
        seconds=round(said[0][1], 1),
        growth_by_rank=grown,
        at_the_end_by_rank=[vars(one) for one in last],
    )
    assert max(grown["own_nbytes"]) <= MOST_GROWTH
    assert max(grown["shared_nbytes"]) <= MOST_GROWTH
    assert max(grown["descriptors"]) <= 0
    assert max(grown["threads"]) <= MOST_THREADS
