"""Random programs: drawn by hypothesis, which also shrinks those that fail; run by ranks; foretold.

All ranks issue the same steps in the same order, on several groups, and wait for what is
asynchronous in an order of their own. Each step has memory of its own, in which its tensors may
have gaps, start anywhere, or overlap; all of that memory is compared.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from values import COMPLEX, MOVED, REDUCED, ops_for, values

import ringcomm
from faults.kinds import KINDS, OBJECTS, Call, Question, Tensors, error_of

WORLD_SIZE = 4
# The ranks of each group, and the algorithm of its collectives.
GROUPS = [
    ([0, 1, 2, 3], None),
    ([0, 1, 2], None),
    ([1, 3], None),
    ([2], None),
    ([0, 2, 3], None),
    ([0, 1, 2, 3], "ring"),
    ([0, 1, 2, 3], "recursive_doubling"),
]
# What every order of additions gives the same bits of; the others need that all is added at once.
EXACT = [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool]
COUNTS = [3, 1, 0, 131, 1000, 9000, 40_000]  # to both sides of 32 KiB
LAYOUTS = ["flat", "strided", "transposed"]
SHARED = ["nowhere", "on some ranks", "everywhere"]  # the memory, so that peers reach it


@dataclass(frozen=True)
class Step:
    """One operation; what the draws mean depends on the kind."""

    kind: str
    group: int
    count: int
    type_drawn: int
    op_drawn: int
    root_drawn: int
    layout: str
    overlaps: bool
    direct: bool
    asynchronous: bool
    shared: str
    seed: int

    @property
    def members(self) -> list[int]:
        return GROUPS[self.group][0]

    @property
    def root(self) -> int:
        return self.root_drawn % len(self.members)

    @property
    def dtype(self) -> torch.dtype:
        if self.kind in ("refused", "mismatched"):
            return torch.float32
        reduces = KINDS[self.kind].reduces
        is_direct = GROUPS[self.group][1] is None
        dtypes = ([*REDUCED, *COMPLEX] if is_direct else EXACT) if reduces else MOVED
        return dtypes[self.type_drawn % len(dtypes)]

    @property
    def op(self) -> str:
        ops = ["SUM", "AVG"] if self.dtype.is_complex else ops_for(self.dtype)
        return ops[self.op_drawn % len(ops)]

    def payload(self, rank: int) -> Any:
        return {"rank": rank, "of": self.seed, "text": "x" * self.count}


@dataclass(frozen=True)
class Program:
    steps: tuple[Step, ...]
    order: int  # seeds the order in which the ranks wait


programs = st.builds(
    Program,
    steps=st.lists(
        st.builds(
            Step,
            kind=st.sampled_from([*KINDS, *OBJECTS]),
            group=st.integers(0, len(GROUPS) - 1),
            count=st.sampled_from(COUNTS),
            type_drawn=st.integers(0, 99),
            op_drawn=st.integers(0, 99),
            root_drawn=st.integers(0, 3),
            layout=st.sampled_from(LAYOUTS),
            overlaps=st.booleans(),
            direct=st.booleans(),
            asynchronous=st.booleans(),
            shared=st.sampled_from(SHARED),
            seed=st.integers(0, 99),
        ),
        min_size=1,
        max_size=10,
    ).map(tuple),
    order=st.integers(0, 99),
)


class Memory:
    """What a rank's tensors of a step lie in; the same wherever it is made."""

    def __init__(self, step: Step, rank: int) -> None:
        n = len(step.members)
        kind = KINDS[step.kind]
        inputs, input_share, outputs, output_share = kind.tensors(n)
        chance = random.Random(1000 * step.seed + rank)
        self.step = step
        stride = 2 if step.layout == "strided" else 1
        at = chance.randrange(3)
        places = []
        for _ in range(outputs):
            places.append(at)
            at += output_share * step.count * stride + chance.randrange(3)
        chance.shuffle(places)
        end = at
        of_inputs = []
        for _ in range(inputs):
            start = chance.randrange(at + 1) if step.overlaps and kind.may_overlap else end
            of_inputs.append(start)
            end = max(end, start + input_share * step.count * stride)
        self.whole = values(7 * step.seed + rank, end + 1, step.dtype, step.op)
        self.writes = [self._view(place, output_share * step.count) for place in places]
        self.reads = [self._view(place, input_share * step.count) for place in of_inputs]

    def _view(self, start: int, count: int) -> torch.Tensor:
        if self.step.layout == "strided":
            return self.whole[start : start + 2 * count : 2]
        flat = self.whole[start : start + count]
        can_turn = count > 0 and count % 2 == 0 and not KINDS[self.step.kind].flat_only
        return flat.view(2, -1).t() if self.step.layout == "transposed" and can_turn else flat

    def held(self) -> Tensors:
        """Copies, flat."""
        return [tensor.clone().reshape(-1) for tensor in self.reads or self.writes]

    def bytes(self) -> bytes:
        return self.whole.view(torch.uint8).numpy().tobytes()


@dataclass
class Seen:
    """What one rank saw of a step: an error, the bytes of its memory, or objects."""

    error: str | None = None
    text: str = ""
    memory: bytes = b""
    objects: Any = None


def foretell(step: Step) -> dict[int, Seen]:
    """By rank of the group's members."""
    members = step.members
    n = len(members)
    if step.kind in OBJECTS:
        payloads = [step.payload(rank) for rank in members]
        result = OBJECTS[step.kind][1]
        return {
            rank: Seen(objects=result(payloads, i, step.root)) for i, rank in enumerate(members)
        }
    memories = [Memory(step, rank) for rank in members]
    held = [memory.held() for memory in memories]
    foretold = {}
    for i, (rank, memory) in enumerate(zip(members, memories, strict=True)):
        result = KINDS[step.kind].result(Question(held, i, step.root, step.op))
        if result is not None:
            for tensor, content in zip(memory.writes, result, strict=True):
                tensor.copy_(content.view(tensor.shape))
        foretold[rank] = Seen(error_of(step.kind, i, step.root, n), memory=memory.bytes())
    return foretold


def make_groups() -> list[Any]:
    return [
        dist.new_group(ranks, pg_options=None if name is None else ringcomm.Options(algorithm=name))
        for ranks, name in GROUPS
    ]


class Run:
    """One rank's way through a program."""

    def __init__(self, rank: int, groups: list[Any], program: Program) -> None:
        self.rank = rank
        self.groups = groups
        self.program = program
        self.chance = random.Random(10 * program.order + rank)
        self.seen: dict[int, Seen] = {}
        self.under_way: dict[int, tuple[list[Any], Memory]] = {}

    def run(self) -> dict[int, Seen]:
        """What was seen of each step that this rank takes part in."""
        for index, step in enumerate(self.program.steps):
            if self.rank not in step.members:
                continue
            self._issue(index, step)
            while self.under_way and self.chance.random() < 0.4:
                self._wait_for_one()
        while self.under_way:
            self._wait_for_one()
        return self.seen

    def _issue(self, index: int, step: Step) -> None:
        call = Call(
            lib=ringcomm if step.direct else dist,
            group=self.groups[step.group],
            index=step.members.index(self.rank),
            n=len(step.members),
            root=step.root,
            op="SUM",
            asynchronous=step.asynchronous,
            tag=10 * index,
            reads=[],
            writes=[],
        )
        if step.kind in OBJECTS:
            objects = OBJECTS[step.kind][0](call, step.payload(self.rank))
            self.seen[index] = Seen(objects=objects)
            return
        is_shared = step.shared == SHARED[2] or (
            step.shared == SHARED[1] and self.chance.random() < 0.5
        )
        with ringcomm.shared_memory() if is_shared else contextlib.nullcontext():
            memory = Memory(step, self.rank)
        call.op, call.reads, call.writes = step.op, memory.reads, memory.writes
        try:
            works = KINDS[step.kind].call(call)
        except Exception as error:
            self._note(index, memory, error)
            return
        works = works if isinstance(works, list) else [works]
        self.under_way[index] = ([work for work in works if work is not None], memory)
        if not step.asynchronous:
            self._wait(index)

    def _wait_for_one(self) -> None:
        self._wait(self.chance.choice(list(self.under_way)))

    def _wait(self, index: int) -> None:
        works, memory = self.under_way.pop(index)
        try:
            for work in works:
                work.wait()
        except Exception as error:
            self._note(index, memory, error)
        else:
            self._note(index, memory, None)

    def _note(self, index: int, memory: Memory, error: Exception | None) -> None:
        name = None if error is None else type(error).__name__
        self.seen[index] = Seen(name, str(error or ""), memory.bytes())


def differences(program: Program, seen: list[dict[int, Seen]]) -> list[str]:
    """What was seen by rank, and is not as foretold."""
    found = []
    for index, step in enumerate(program.steps):
        for rank, expected in foretell(step).items():
            actual = seen[rank][index]
            if actual.error != expected.error:
                found.append(
                    f"step {index}, rank {rank}: raised {actual.error} {actual.text!r}, "
                    f"expected {expected.error}"
                )
            elif actual.objects != expected.objects:
                found.append(f"step {index}, rank {rank}: got {actual.objects}")
            elif actual.memory != expected.memory:
                pairs = zip(actual.memory, expected.memory, strict=True)
                at = next(i for i, (a, b) in enumerate(pairs) if a != b)
                found.append(
                    f"step {index}, rank {rank}: byte {at} of {len(expected.memory)} and perhaps "
                    f"more differ; dtype={step.dtype}, op={step.op}"
                )
    return list(itertools.islice(found, 20))
