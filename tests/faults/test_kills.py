"""A rank is killed while all are at work: each survivor raises, soon, and names it."""

from __future__ import annotations

import dataclasses
import random
import re
import signal
import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from faults.crew import Crew, Mate, Meeting, meeting
from faults.record import Record, counted, times
from faults.traffic import ROUNDS, Traffic, draw_traffic

SOON = 20.0  # seconds on a busy host; the time-out is this:
TIMEOUT = timedelta(minutes=10)
# Other ranks in a monitored barrier refer to rank 0's error, as gloo's do.
LOOK_AT_RANK_0 = re.compile(r"reached monitoredBarrier, but received errors .*rank 0", re.S)

MESSAGES = {"messages", "from_any_source", "batches"}
LEFT = re.compile(r"\brank \d\b.* (has closed the group|has ended)", re.S)


def works_until_it_raises(mate: Mate, place: Meeting, traffic: Traffic, stays: bool) -> None:
    dist.init_process_group(
        "ring",
        store=place.store(mate.world_size),
        rank=mate.rank,
        world_size=mate.world_size,
        timeout=TIMEOUT,
    )
    traffic.run(2)
    mate.say("works")
    try:
        traffic.run(None)
    except Exception as error:
        raised = (time.monotonic(), type(error).__name__, str(error))
    mate.say(raised)
    if stays:
        mate.hear()
    dist.destroy_process_group()


def names(text: str, rank: int, pid: int) -> bool:
    return (
        f"its process {pid} has ended" in text and re.search(rf"\brank {rank}\b", text) is not None
    )


@dataclass
class Seen:
    """What became of one kill."""

    seconds: float  # until the last survivor has raised
    # Survivors whose error names the killed rank and its process; or, those that follow in a
    # monitored barrier, rank 0.
    named: int = 0
    named_who_left: int = 0  # ranks that waited for a survivor that had raised and left
    unnamed: list[str] = field(default_factory=list)


def one_kill(seed: int, name: str) -> Seen:
    draw = random.Random(seed)
    traffic = dataclasses.replace(draw_traffic(draw), name=name)
    world_size = draw.randint(2, 5)
    victim = draw.randrange(world_size)
    survivors = [rank for rank in range(world_size) if rank != victim]
    case = f"seed {seed}: {traffic}, rank {victim} of {world_size}"
    # A wait for a message from a rank that has raised ends only when that rank leaves.
    stays = draw.random() < 0.5 and name not in MESSAGES
    with (
        meeting(of_file=draw.random() < 0.5) as place,
        Crew(works_until_it_raises, world_size, place, traffic, stays, case=case) as crew,
    ):
        crew.hear_all(range(world_size))
        time.sleep(draw.uniform(0, 0.1))
        killed = crew.signal(victim, signal.SIGKILL)
        raised = crew.hear_all(survivors, SOON)
        for rank in survivors:
            crew.tell(rank, "go")
        codes = crew.ended()
        assert codes[victim] == -signal.SIGKILL, case
        assert all(codes[rank] == 0 for rank in survivors), f"{case}: {codes}"
    seen = Seen(max(when for when, _, _ in raised.values()) - killed)
    for rank, (_, kind, text) in raised.items():
        is_follower = name == "monitored_barrier" and LOOK_AT_RANK_0.search(text)
        assert kind == "DistBackendError" or name == "monitored_barrier", f"{case}: {kind}: {text}"
        if names(text, victim, crew.pid(victim)) or is_follower:
            seen.named += 1
        elif name in MESSAGES and LEFT.search(text):
            seen.named_who_left += 1
        else:
            seen.unnamed.append(f"{case}; rank {rank}: {text}")
    return seen


def test_kills(record: Record) -> None:
    trials = record.scale(len(ROUNDS), 300)
    operations = [list(ROUNDS)[trial % len(ROUNDS)] for trial in range(trials)]
    seen = [one_kill(seed, name) for seed, name in enumerate(operations)]
    unnamed = [text for one in seen for text in one.unnamed]
    record.write(
        kills=trials,
        until_the_last_survivor_raised=times([one.seconds for one in seen]),
        errors_that_name_the_killed_rank_or_who_names_it=sum(one.named for one in seen),
        errors_that_name_a_survivor_which_left_for_it=sum(one.named_who_left for one in seen),
        other_errors=unnamed,
        operations=counted(operations),
    )
    assert not unnamed
