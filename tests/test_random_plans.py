"""Random plans, proven, carried out, and compared bit for bit.

They are carried out over shared memory and on simulated streams by tests/cpp/run_plans.cpp, against
an interpreter that does what plans say step by step, with nothing fused.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import ahead
import pytest
import test_core_cpp as core
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ringcomm.plan import Plan, Plans, Step, Transfer
from ringcomm.plan.algorithms import ALGORITHMS, choose
from ringcomm.plan.plans import COLLECTIVES, ROOTED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# As csrc/reduce/types.h numbers them, the sums that depend on their order first.
FLOAT32, FLOAT16, BFLOAT16, INT32, INT8 = 1, 2, 3, 7, 9
SUM, AVG, MAX, PREMUL_SUM = 0, 1, 4, 8


@dataclass
class Draft:
    """Plans of all ranks in the making: messages of common steps."""

    world_size: int
    num_chunks: int
    steps: list[list[tuple[int, int, int, int, bool]]] = field(default_factory=list)

    def step(self) -> Draft:
        """Begins a step."""
        self.steps.append([])
        return self

    def send(self, sender: int, receiver: int, first: int, count: int = 1, *, add: bool) -> None:
        """A message of the step that was begun last."""
        self.steps[-1].append((sender, receiver, first, count, add))

    def plans(self) -> list[Plan]:
        """The plans, a list of steps for each rank."""
        steps: list[list[Step]] = [[] for _ in range(self.world_size)]
        for messages in self.steps:
            sends: list[list[Transfer]] = [[] for _ in steps]
            recvs: list[list[Transfer]] = [[] for _ in steps]
            for sender, receiver, first, count, add in messages:
                sends[sender].append(Transfer(receiver, first, count))
                recvs[receiver].append(Transfer(sender, first, count, add))
            for rank in range(self.world_size):
                steps[rank].append(Step(sends[rank], recvs[rank]))
        return [Plan(self.num_chunks, mine) for mine in steps]


def add_tree(draft: Draft, chunk: int, order: Sequence[int], parents: Sequence[int]) -> None:
    """Adds a chunk up a tree, several children at once, and copies it down again."""
    depth = [0] * len(order)
    for child in range(1, len(order)):
        depth[child] = depth[parents[child]] + 1
    for down in (False, True):
        for level in sorted(set(depth) - {0}, reverse=not down):
            draft.step()
            for child in range(1, len(order)):
                if depth[child] == level:
                    ends = (order[child], order[parents[child]])
                    draft.send(*(reversed(ends) if down else ends), chunk, add=not down)


@st.composite
def trees(draw: st.DrawFn) -> Plans:
    """A random tree for each chunk, one after the other or all in the same steps."""
    world_size = draw(st.integers(2, 16))
    num_chunks = draw(st.integers(1, 3))
    drafts = []
    for chunk in range(num_chunks):
        order = draw(st.permutations(range(world_size)))
        parents = [0, *(draw(st.integers(0, child - 1)) for child in range(1, world_size))]
        drafts.append(Draft(world_size, num_chunks))
        add_tree(drafts[-1], chunk, order, parents)
    merged = Draft(world_size, num_chunks)
    if draw(st.booleans()):
        for index in range(max(len(draft.steps) for draft in drafts)):
            merged.steps.append(
                [message for draft in drafts for message in (draft.steps + [[]] * index)[index]]
            )
    else:
        merged.steps = [step for draft in drafts for step in draft.steps]
    return Plans("all_reduce", merged.plans())


@st.composite
def rings(draw: st.DrawFn) -> Plans:
    """A ring through the ranks in a random order, of units of several chunks."""
    world_size = draw(st.integers(2, 12))
    order = draw(st.permutations(range(world_size)))
    unit = draw(st.integers(1, 3))
    draft = Draft(world_size, world_size * unit)
    for step in range(2 * world_size - 2):
        adds = step < world_size - 1
        draft.step()
        for place in range(world_size):
            chunk = (place - step - 1 if adds else place - (step - world_size + 1)) % world_size
            draft.send(
                order[place],
                order[(place + 1) % world_size],
                chunk * unit,
                unit,
                add=adds,
            )
    return Plans("all_reduce", draft.plans())


@st.composite
def hypercubes(draw: st.DrawFn) -> Plans:
    """Recursive doubling along the dimensions of a hypercube, in a random order."""
    dimensions = draw(st.integers(1, 4))
    order = draw(st.permutations(range(dimensions)))
    draft = Draft(1 << dimensions, 1)
    for dimension in order:
        draft.step()
        for rank in range(1 << dimensions):
            draft.send(rank, rank ^ 1 << dimension, 0, add=True)
    return Plans("all_reduce", draft.plans())


def renamed(plans: Sequence[Plan], order: Sequence[int]) -> list[Plan]:
    """The same plans among other ranks: what rank r did, order[r] does."""

    def transfers(those: Sequence[Transfer]) -> list[Transfer]:
        return [Transfer(order[t.peer], t.first_chunk, t.num_chunks, t.reduce) for t in those]

    by_rank = dict(zip(order, plans, strict=True))
    return [
        Plan(
            by_rank[rank].num_chunks,
            [Step(transfers(s.sends), transfers(s.recvs)) for s in by_rank[rank].steps],
        )
        for rank in range(len(plans))
    ]


def spread(draw: st.DrawFn, plan: Plan) -> Plan:
    """The same plan with empty steps in between, which ranks then no longer have in common."""
    steps: list[Step] = []
    for step in plan.steps:
        steps += [Step()] * draw(st.integers(0, 2)) + [step]
    return Plan(plan.num_chunks, steps)


@st.composite
def known(draw: st.DrawFn) -> Plans:
    """An algorithm of the table, on any hosts and perhaps among other ranks or in other steps."""
    collective, algorithm = draw(
        st.sampled_from(
            [(of, name) for of, names in ALGORITHMS.items() for name in names if of != "barrier"]
        )
    )
    if ALGORITHMS[collective][algorithm].two_level:
        sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    else:
        sizes = [draw(st.integers(2, 12))]
    world_size = sum(sizes)
    root = draw(st.integers(0, world_size - 1)) if collective in ROOTED else 0
    hosts = sizes if ALGORITHMS[collective][algorithm].two_level else None
    chosen = choose(collective, algorithm, world_size, root, hosts)
    plans = [chosen.plan_of(rank) for rank in range(world_size)]
    if collective == "all_reduce" and draw(st.booleans()):
        plans = renamed(plans, draw(st.permutations(range(world_size))))
    if draw(st.booleans()):
        plans = [spread(draw, plan) for plan in plans]
    return Plans(collective, plans, root=root)


@st.composite
def one_after_the_other(draw: st.DrawFn) -> Plans:
    """Reduce-scatter by one algorithm, all-gather by another: an all-reduce."""
    world_size = draw(st.integers(2, 9))
    chunks: dict[int, list[list[list[Plan]]]] = {}
    for half, collective in enumerate(("reduce_scatter", "all_gather")):
        for algorithm, properties in ALGORITHMS[collective].items():
            hosts = [world_size - 1, 1] if properties.two_level else None
            chosen = choose(collective, algorithm, world_size, 0, hosts)
            plans = [chosen.plan_of(rank) for rank in range(world_size)]
            chunks.setdefault(plans[0].num_chunks, [[], []])[half].append(plans)
    firsts, seconds = draw(st.sampled_from([both for both in chunks.values() if all(both)]))
    first, second = draw(st.sampled_from(firsts)), draw(st.sampled_from(seconds))
    return Plans(
        "all_reduce",
        [Plan(a.num_chunks, [*a.steps, *b.steps]) for a, b in zip(first, second, strict=True)],
    )


@st.composite
def gossip(draw: st.DrawFn) -> Plans:
    """Chunks wander about, are sent again, and end on the ranks that they were promised to."""
    collective = draw(
        st.sampled_from(["broadcast", "scatter", "gather", "all_gather", "all_to_all"])
    )
    world_size = draw(st.integers(2, 6))
    root = draw(st.integers(0, world_size - 1)) if collective in ROOTED else 0
    everyone = set(range(world_size))
    ends: dict[int, tuple[int, set[int]]] = {}  # of each chunk: where it begins, where it must end
    if collective == "broadcast":
        ends = dict.fromkeys(range(draw(st.integers(1, 4))), (root, everyone))
    elif collective == "scatter":
        ends = {rank: (root, {rank}) for rank in everyone}
    elif collective == "gather":
        ends = {rank: (rank, {root}) for rank in everyone}
    elif collective == "all_gather":
        ends = {rank: (rank, everyone) for rank in everyone}
    else:
        ends = {i * world_size + j: (i, {j}) for i in everyone for j in everyone}
    draft = Draft(world_size, len(ends))
    holders = {chunk: {begin} for chunk, (begin, _) in ends.items()}
    for _ in range(draw(st.integers(0, 6))):
        draft.step()
        arrived = set()
        for _ in range(draw(st.integers(1, 2 * world_size))):
            chunk = draw(st.sampled_from(sorted(ends)))
            sender = draw(st.sampled_from(sorted(holders[chunk])))
            receiver = draw(st.sampled_from(sorted(everyone - {sender})))
            if (chunk, receiver) not in arrived:
                arrived.add((chunk, receiver))
                draft.send(sender, receiver, chunk, add=False)
        for chunk, receiver in arrived:
            holders[chunk].add(receiver)
    draft.step()
    for chunk, (_, wanted) in ends.items():
        for receiver in sorted(wanted - holders[chunk]):
            sender = draw(st.sampled_from(sorted(holders[chunk])))
            draft.send(sender, receiver, chunk, add=False)
    return Plans(collective, draft.plans(), root=root)


@st.composite
def two_sums(draw: st.DrawFn) -> Plans:
    """Two ranks add everything up; the others send to one while they receive from the other."""
    world_size = draw(st.integers(2, 8))
    first, second, *others = draw(st.permutations(range(world_size)))
    draft = Draft(world_size, 1).step()
    draft.send(first, second, 0, add=True)
    for rank in (second, *others):
        draft.send(rank, first, 0, add=True)
    draft.step()
    for rank in others:
        draft.send(rank, second, 0, add=True)
        draft.send(first, rank, 0, add=False)
    return Plans("all_reduce", draft.plans())


class Runner:
    """The program that carries out plans; started again if a problem ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, problem: str) -> str:
        """Its answer to a problem: "ok", or what is wrong."""
        if self._process is None:
            self._process = subprocess.Popen(
                [core.BUILD / "address" / "run_plans"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin and process.stdout
        process.stdin.write(problem + "\n")
        process.stdin.flush()
        if answer := process.stdout.readline().strip():
            return answer
        self.close()
        return f"it ended with {process.returncode}; its last words are above"

    def close(self) -> None:
        """Ends the program."""
        if self._process is not None:
            self._process.communicate(timeout=60)
            self._process = None


@ahead.once
def failure_to_build() -> str:
    return core.ninja("address/run_plans")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    if failure := failure_to_build():
        pytest.fail(failure, pytrace=False)
    runner = Runner()
    yield runner
    runner.close()


def problem(plans: Plans, dtype: int, op: int, count: int, in_place: bool, seed: int) -> str:
    """As tests/cpp/run_plans.cpp reads it."""
    numbers = [list(COLLECTIVES).index(plans.collective), plans.world_size, plans.root]
    numbers += [dtype, op, count, in_place, seed, plans.num_chunks]
    for plan in plans:
        numbers.append(len(plan.steps))
        for step in plan.steps:
            numbers.append(len(step.sends))
            for t in step.sends:
                numbers += [t.peer, t.first_chunk, t.num_chunks]
            numbers.append(len(step.recvs))
            for t in step.recvs:
                numbers += [t.peer, t.first_chunk, t.num_chunks, t.reduce]
    return " ".join(str(int(number)) for number in numbers)


EXAMPLES = 100 if settings.default.derandomize else 1000  # as tests/conftest.py chooses
ALONE = Plans("reduce_scatter", [Plan(1, [])])

ANY = st.one_of(
    trees(), rings(), hypercubes(), known(), one_after_the_other(), gossip(), two_sums()
)


@pytest.mark.ahead(failure_to_build)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plans=ANY,
    kind=st.sampled_from(
        [
            (FLOAT32, SUM),
            (BFLOAT16, SUM),
            (BFLOAT16, AVG),
            (FLOAT16, PREMUL_SUM),
            (FLOAT32, AVG),
            (INT32, SUM),
            (INT8, MAX),
        ]
    ),
    count=st.sampled_from([0, 1, 7, 100, 4097, 50_000, 600_000]),
    in_place=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@example(plans=ALONE, kind=(FLOAT16, PREMUL_SUM), count=7, in_place=False, seed=0)
@example(plans=ALONE, kind=(BFLOAT16, AVG), count=7, in_place=False, seed=0)
def test_random_plans_end_with_the_bits_that_they_say(
    runner: Runner,
    plans: Plans,
    kind: tuple[int, int],
    count: int,
    in_place: bool,
    seed: int,
) -> None:
    plans.verify()
    answer = runner.ask(problem(plans, *kind, count, in_place, seed))
    assert answer == "ok", f"{answer}\n{plans}"
