"""A rank stands still: beyond the time-out, which then names it, or for less: all is well."""

from __future__ import annotations

import dataclasses
import random
import re
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from faults.crew import Crew, Mate, Meeting, meeting
from faults.record import Record, times
from faults.traffic import ROUNDS, Traffic, draw_traffic

SHORT = 1.0  # seconds: a time-out that a stop exceeds
AMPLE = 120.0  # one that it does not
SOON = 20.0
# In a monitored barrier rank 0 names the missing ranks, and the others refer to rank 0's error.
LOOK_AT_RANK_0 = re.compile(r"reached monitoredBarrier, but received errors .*rank 0", re.S)


def works(mate: Mate, place: Meeting, traffic: Traffic, timeout: float) -> None:
    dist.init_process_group(
        "ring",
        store=place.store(mate.world_size),
        rank=mate.rank,
        world_size=mate.world_size,
        timeout=timedelta(seconds=timeout),
    )
    traffic.run(2)
    mate.say("works")
    on, raised = torch.ones(1), None
    try:
        while on[0] == 1:
            traffic.run(3)
            # All end in the same round, which rank 0 learns.
            on[0] = float(mate.rank != 0 or not mate.to_parent.poll())
            dist.all_reduce(on, dist.ReduceOp.MIN)
    except Exception as error:
        raised = (time.monotonic(), type(error).__name__, str(error))
    mate.say(raised)
    mate.hear()
    dist.destroy_process_group()


def one_stop(seed: int, is_long: bool) -> tuple[float, list[str]]:
    """Seconds from the stop until the last of the others has raised; what did not name it."""
    draw = random.Random(seed)
    traffic = dataclasses.replace(draw_traffic(draw), name=list(ROUNDS)[seed % len(ROUNDS)])
    world_size = draw.randint(2, 4)
    stopped = draw.randrange(world_size)
    others = [rank for rank in range(world_size) if rank != stopped]
    case = f"seed {seed}: {traffic}, rank {stopped} of {world_size}"
    last, unnamed = 0.0, []
    with (
        meeting(of_file=draw.random() < 0.5) as place,
        Crew(works, world_size, place, traffic, SHORT if is_long else AMPLE, case=case) as crew,
    ):
        crew.hear_all(range(world_size))
        time.sleep(draw.uniform(0, 0.1))
        began = crew.signal(stopped, signal.SIGSTOP)
        if is_long:
            said = crew.hear_all(others, SOON)
            for rank, (when, kind, text) in said.items():
                is_follower = traffic.name == "monitored_barrier" and LOOK_AT_RANK_0.search(text)
                assert kind == "DistBackendError" or traffic.name == "monitored_barrier", text
                last = max(last, when - began)
                if not names_it(text, stopped) and not is_follower:
                    unnamed.append(f"{case}; rank {rank}: {text}")
            crew.signal(stopped, signal.SIGCONT)
            assert crew.hear(stopped) is not None, f"{case}: the group has failed"
        else:
            time.sleep(draw.uniform(0.05, 2 * SHORT))
            crew.signal(stopped, signal.SIGCONT)
            crew.tell(0, "end")
            said = crew.hear_all(range(world_size))
            assert set(said.values()) == {None}, f"{case}: {said}"
        for rank in range(world_size):
            crew.tell(rank, "go")
        assert crew.ended() == [0] * world_size, case
    return last, unnamed


def names_it(text: str, rank: int) -> bool:
    awaited = rf"waiting for ranks? (\d+(, | and ))*{rank}\b"
    missed = rf"Ranks? (\d+, )*{rank} failed to pass monitoredBarrier"
    return re.search(rf"{awaited}|{missed}", text) is not None


def test_stops(record: Record) -> None:
    trials = record.scale(6, 50)
    raised, unnamed = [], []
    for seed in range(trials):
        is_long = seed % 2 == 0
        last, not_named = one_stop(seed, is_long)
        raised += [last] * is_long
        unnamed += not_named
    record.write(
        stops=trials,
        longer_than_the_time_out={
            "timeout_s": SHORT,
            "until_the_last_of_the_others_raised": times(raised),
        },
        shorter={"number": trials - len(raised), "raised": 0},
        not_named=unnamed,
    )
    assert not unnamed
