"""Random programs on ranks that live for many of them, compared with plain torch bit for bit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings

from faults.crew import Crew, Mate, Meeting, meeting
from faults.programs import (
    WORLD_SIZE,
    Program,
    Run,
    Step,
    differences,
    foretell,
    make_groups,
    programs,
)
from faults.record import Record

TIMEOUT = timedelta(seconds=30)
LONGEST = 480.0  # seconds; what is done by then is what counts


def serve(mate: Mate, place: Meeting) -> None:
    dist.init_process_group(
        "ring",
        store=place.store(mate.world_size),
        rank=mate.rank,
        world_size=mate.world_size,
        timeout=TIMEOUT,
    )
    groups = make_groups()
    while (program := mate.hear()) is not None:
        mate.say(Run(mate.rank, groups, program).run())
    dist.destroy_process_group()


class Pool:
    """Ranks that carry out programs. After a failure they are started again."""

    def __init__(self) -> None:
        self._made: tuple[object, Crew] | None = None

    def check(self, program: Program) -> None:
        if self._made is None:
            place = meeting(of_file=False)
            self._made = place, Crew(serve, WORLD_SIZE, place.__enter__())
        crew = self._made[1]
        try:
            for rank in range(WORLD_SIZE):
                crew.tell(rank, program)
            seen = crew.hear_all(range(WORLD_SIZE))
            found = differences(program, [seen[rank] for rank in range(WORLD_SIZE)])
            assert not found, "\n".join(found)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        if self._made is not None:
            place, crew = self._made
            crew.__exit__(None, None, None)
            place.__exit__(None, None, None)
            self._made = None

    def end(self) -> None:
        """All is well, and they leave."""
        if self._made is not None:
            crew = self._made[1]
            for rank in range(WORLD_SIZE):
                crew.tell(rank, None)
            assert crew.ended() == [0] * WORLD_SIZE
            self.kill()


@pytest.fixture
def pool(leaves_nothing: None) -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.kill()


def test_programs(pool: Pool, record: Record) -> None:
    kinds: Counter[str] = Counter()
    began = time.monotonic()

    @settings(
        max_examples=record.scale(60, 2000),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(program=programs)
    def check(program: Program) -> None:
        if time.monotonic() - began > LONGEST:
            return
        pool.check(program)
        kinds.update(step.kind for step in program.steps)
        kinds["programs"] += 1

    check()
    pool.end()
    record.write(
        programs=kinds.pop("programs"),
        operations=kinds.total(),
        seconds=round(time.monotonic() - began, 1),
        differences=0,
        of_each_kind=dict(sorted(kinds.items())),
    )


def step_of(kind: str) -> Step:
    return Step(
        kind,
        group=1,
        count=131,
        type_drawn=0,
        op_drawn=0,
        root_drawn=0,
        layout="strided",
        overlaps=True,
        direct=False,
        shared="everywhere",
        asynchronous=False,
        seed=1,
    )


@pytest.mark.parametrize("kind", ["reduce_scatter", "refused", "gather_object"])
def test_differences_are_found(kind: str) -> None:
    """What the campaign rests on."""
    step = step_of(kind)
    seen = [{0: foretell(step)[rank]} if rank in step.members else {} for rank in range(WORLD_SIZE)]
    program = Program((step,), order=0)
    assert differences(program, seen) == []
    one = seen[1][0]
    if kind == "reduce_scatter":
        one.memory = one.memory[:5] + bytes([one.memory[5] ^ 1]) + one.memory[6:]
    elif kind == "refused":
        one.error = None
    else:
        one.objects = ["other"]
    (found,) = differences(program, seen)
    assert "step 0, rank 1" in found
