"""A rank dies at any point of making a group; then all start again with the same store."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from faults.crew import Crew, Mate, Meeting, meeting
from faults.dying_store import BEFORE_ITS_TICKET, DyingStore, kill_oneself
from faults.record import Record, counted, times

KINDS = ["init_process_group", "new_group", "split"]
TIMEOUT = timedelta(seconds=120)
# If a rank died before it wrote its number on its ticket, no other rank knows it: only the time-out
# shows that it is missing.
SHORT = timedelta(seconds=2)
SOON = 20.0  # seconds on a busy host
NEVER = 1 << 30  # operations


def check_sum(group: dist.ProcessGroup | None = None) -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == dist.get_world_size(group)


def join(mate: Mate, store: dist.Store, timeout: timedelta) -> None:
    dist.init_process_group(
        "ring", store=store, rank=mate.rank, world_size=mate.world_size, timeout=timeout
    )


def split(store: dist.Store, world_size: int) -> None:
    """By the backend's method: torch's split_group wants a group that is bound to a device."""
    whole = dist.group.WORLD._get_backend(torch.device("cpu"))
    tensor = torch.ones(1000)
    part = whole.split(store, list(range(world_size)), whole.options)
    part.allreduce([tensor]).wait()
    assert tensor[0] == world_size


def makes_a_group(
    mate: Mate, place: Meeting, kind: str, victim: int, operations: int, timeout: timedelta
) -> None:
    store: dist.Store = place.store(mate.world_size)
    if mate.rank == victim:
        store = dying = DyingStore(store, NEVER, lambda: mate.say(time.monotonic()))
        if kind == "init_process_group":
            dying.left = operations
    if kind != "init_process_group":
        join(mate, store, timeout)
        check_sum()
        if mate.rank == victim:
            dying.left, dying.counting = operations, False
    try:
        if kind == "init_process_group":
            join(mate, store, timeout)
            check_sum()
        elif kind == "new_group":
            check_sum(dist.new_group(timeout=timeout))
        else:
            split(store, mate.world_size)
        # The group has been made before the rank came to its last operation.
        if mate.rank == victim:
            mate.say(time.monotonic())
            kill_oneself()
        check_sum()
        check_sum()
    except dist.DistBackendError as error:
        mate.say((time.monotonic(), str(error)))
    if dist.is_initialized():
        dist.destroy_process_group()


def starts_again(mate: Mate, place: Meeting, restart: int) -> None:
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restart)
    began = time.monotonic()
    join(mate, place.store(mate.world_size), TIMEOUT)
    check_sum()
    check_sum(dist.new_group())
    mate.say(time.monotonic() - began)
    dist.destroy_process_group()


def names(text: str, rank: int, pid: int, died_early: bool) -> bool:
    """As dead; or as missing, if the others may not know that it has ever lived."""
    missing = rf"Timed out.*\branks? (\d+(, | and ))*{rank} did not come"
    if died_early and re.search(missing, text):
        return True
    return f"process {pid} has ended" in text and re.search(rf"\brank {rank}\b", text) is not None


class Trial:
    """One death and two starts, drawn from `seed`."""

    def __init__(self, seed: int, kind: str) -> None:
        draw = random.Random(seed)
        self.kind = kind
        self.world_size = draw.randint(2, 5)
        self.victim = draw.randrange(self.world_size)
        self.operations = draw.choice([BEFORE_ITS_TICKET, *range(12), 20, 40])
        self.of_file = draw.random() < 0.5
        self.raises_count = draw.random() < 0.5
        # Rank 0 writes its ticket and then, for the others, that it leads.
        known_after = 2 if self.victim == 0 else 1
        self.died_early = self.operations < known_after and kind == "init_process_group"

    def __str__(self) -> str:
        return str(vars(self))

    def run(self) -> tuple[float, float, list[str]]:
        """Seconds until all have raised, and until all have started; what was not named."""
        survivors = [rank for rank in range(self.world_size) if rank != self.victim]
        timeout = SHORT if self.died_early else TIMEOUT
        arguments = (self.kind, self.victim, self.operations, timeout)
        unnamed = []
        with meeting(self.of_file) as place:
            with Crew(makes_a_group, self.world_size, place, *arguments, case=self) as crew:
                died = crew.hear(self.victim)
                raised = crew.hear_all(survivors, SOON)
                codes = crew.ended()
                assert codes[self.victim] == -signal.SIGKILL, self
                assert all(codes[rank] == 0 for rank in survivors), f"{self}: {codes}"
                for rank, (_, text) in raised.items():
                    if not names(text, self.victim, crew.pid(self.victim), self.died_early):
                        unnamed.append(f"{self}; rank {rank}: {text}")
            with Crew(
                starts_again, self.world_size, place, int(self.raises_count), case=self
            ) as crew:
                started = crew.hear_all(range(self.world_size))
                assert crew.ended() == [0] * self.world_size, self
        last = max(when for when, _ in raised.values()) - died
        return last, max(started.values()), unnamed


def test_setup_deaths(record: Record) -> None:
    trials = [Trial(seed, KINDS[seed % len(KINDS)]) for seed in range(record.scale(12, 200))]
    raised, early, started, unnamed = [], [], [], []
    for trial in trials:
        last, start, not_named = trial.run()
        (early if trial.died_early else raised).append(last)
        started.append(start)
        unnamed += not_named
    record.write(
        deaths=len(trials),
        until_the_last_survivor_raised=times(raised),
        before_anybody_knew_of_the_rank={
            "timeout_s": SHORT.total_seconds(),
            "until_the_last_survivor_raised": times(early),
        },
        until_all_have_started_again=times(started),
        not_named=unnamed,
        while_making=counted([trial.kind for trial in trials]),
    )
    assert not unnamed


TICKETS = "group/tickets"


def counts(mate: Mate, place: Meeting, operations: int) -> None:
    done = 0
    store = DyingStore(place.store(1), operations, lambda: mate.say(done))
    for call in (
        lambda: store.set("1", "x"),
        lambda: store.get("1"),
        lambda: store.add(TICKETS, 1),
        lambda: store.check(["1"]),
        lambda: store.set("2", "x"),
        lambda: store.get("2"),
        lambda: store.get("2"),
    ):
        call()
        done += 1


@pytest.mark.parametrize(
    ("operations", "done", "taken"),
    [(BEFORE_ITS_TICKET, 2, False), (0, 2, True), (1, 3, True), (3, 5, True)],
)
def test_the_store_kills_at_its_operation(operations: int, done: int, taken: bool) -> None:
    """What the campaign rests on. The operation in which it kills is not counted."""
    with meeting(of_file=True) as place, Crew(counts, 1, place, operations) as crew:
        assert crew.hear(0) == done
        assert crew.ended() == [-signal.SIGKILL]
        assert place.store(1).check([TICKETS]) == taken
