"""Which sums plans come to, against plans carried out here on numbers and on nested tuples.

Nothing but the plans is ringcomm's: what adds, rounds and compares is Python and torch.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
import test_random_plans as random_plans
import torch
from documents import blocks, page
from hypothesis import given, settings
from hypothesis import strategies as st

import ringcomm
from ringcomm.plan import Plan, PlanError, Plans, Step, Sum, Transfer
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.plans import ROOTED

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
NAMES = [(collective, name) for collective in REDUCTIONS for name in ALGORITHMS[collective]]
WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2)

Add = Callable[[Sequence[Any]], Any]


def results(plans: Plans, inputs: Sequence[Any], add: Add) -> dict[tuple[int, int], Any]:
    """What ranks end with, by rank and promised chunk; `add` gets a step's inputs in rank order."""
    n, num_chunks = len(plans), plans.num_chunks
    held = [[inputs[rank]] * num_chunks for rank in range(n)]
    mail: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
    left = [deque(plan.steps) for plan in plans]
    has_sent = [False] * n
    while any(left):
        gone_on = False
        for rank in range(n):
            if not left[rank]:
                continue
            step = left[rank][0]
            if not has_sent[rank]:
                for send in step.sends:
                    mail[rank, send.peer].extend(held[rank][chunk] for chunk in chunks_of(send))
                has_sent[rank] = gone_on = True
            awaited: dict[int, int] = defaultdict(int)
            for recv in step.recvs:
                awaited[recv.peer] += recv.num_chunks
            if any(len(mail[peer, rank]) < number for peer, number in awaited.items()):
                continue
            added: dict[int, dict[int, Any]] = defaultdict(dict)
            for recv in step.recvs:
                for chunk in chunks_of(recv):
                    value = mail[recv.peer, rank].popleft()
                    if recv.reduce:
                        added[chunk][recv.peer] = value
                    else:
                        held[rank][chunk] = value
            for chunk, values in added.items():
                values[rank] = held[rank][chunk]
                held[rank][chunk] = add([value for _, value in sorted_by_rank(values)])
            left[rank].popleft()
            has_sent[rank] = False
            gone_on = True
        assert gone_on, "deadlock"
    return {(r, chunk): held[r][chunk] for r in range(n) for chunk in promised(plans, r)}


def chunks_of(transfer: Transfer) -> range:
    return range(transfer.first_chunk, transfer.first_chunk + transfer.num_chunks)


def sorted_by_rank(values: dict[int, Any]) -> list[tuple[int, Any]]:
    return sorted(values.items(), key=lambda item: item[0])


def promised(plans: Plans, rank: int) -> range:
    per_rank = plans.num_chunks // len(plans)
    if plans.collective == "reduce_scatter":
        return range(rank * per_rank, (rank + 1) * per_rank)
    return range(plans.num_chunks if plans.collective == "all_reduce" or rank == plans.root else 0)


def in_pairs(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum by halves, of which the first has the largest power of two that is not all."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return in_pairs(values[:half]) + in_pairs(values[half:])


def adds_in_pairs(dtype: torch.dtype) -> Add:
    """A step of a reproducible group: 16- and 8-bit floats are added in float32."""
    wide = dtype if dtype.itemsize >= 4 else torch.float32
    return lambda values: in_pairs([value.to(wide) for value in values]).to(dtype)


def inputs_of(world_size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Random numbers, so many that two trees differ in one of them.

    What float32 rounds is seldom seen in 16 bits. So half of them are large or small: large ones
    cancel each other, and a small one is lost if it is added to a large one.
    """
    random = torch.Generator().manual_seed(world_size)

    def one_rank() -> torch.Tensor:
        plain = torch.randn(256, generator=random, dtype=torch.float64)
        of = torch.tensor([-(2.0**10), 2.0**10, -(2.0**-15), 2.0**-15, 2.0**-16])
        extreme = of[torch.randint(len(of), (256,), generator=random)]
        return torch.cat([plain, extreme]).to(dtype)

    return [one_rank() for _ in range(world_size)]


def differs(plans: Plans, dtype: torch.dtype) -> set[tuple[int, int]]:
    """The ranks and chunks whose bits are not those of one step over all ranks."""
    inputs, add = inputs_of(len(plans), dtype), adds_in_pairs(dtype)
    canonical = add(inputs) if len(plans) > 1 else inputs[0]

    def bits(tensor: torch.Tensor) -> list[int]:
        return tensor.view(torch.uint8).tolist()

    wanted = bits(canonical)
    ends = results(plans, inputs, add)
    return {place for place, value in ends.items() if bits(value) != wanted}


def check(plans: Plans, dtype: torch.dtype) -> None:
    """What is said of the plans, and where it is, is what numbers show."""
    said = plans.association_difference(dtype)
    where = sorted((chunk, rank) for rank, chunk in differs(plans, dtype))
    if not where:
        assert said == "", plans
        return
    found = re.match(r"rank (\d+) ends with .* in chunk (\d+), and not with ", said)
    assert found, (plans, where)
    assert (int(found[2]), int(found[1])) == where[0], plans


def settings_of(collective: str, algorithm: str, n: int) -> list[dict[str, Any]]:
    """Roots and hosts: all on one, pairs, fours, unequal ones, each rank alone."""
    if collective in ROOTED:
        return [{"root": root} for root in sorted({0, n // 2, n - 1})]
    if not ALGORITHMS[collective][algorithm].two_level:
        return [{}]
    sizes = {(n,), (1,) * n}
    for size in (2, 4):
        full, rest = divmod(n, size)
        sizes.add((size,) * full + (rest,) * (rest > 0))
    if n > 3:
        sizes.add((n - 3, 1, 2))
    return [{"ranks_per_host": list(each)} for each in sorted(sizes)]


def every_setting(collective: str, algorithm: str, n: int) -> list[Plans]:
    generate = getattr(ringcomm.plan, collective)
    given = settings_of(collective, algorithm, n)
    return [generate(algorithm, world_size=n, **arguments) for arguments in given]


@pytest.mark.parametrize(("collective", "algorithm"), NAMES)
def test_numbers_differ_where_the_association_does(collective: str, algorithm: str) -> None:
    for n in WORLD_SIZES:
        for plans in every_setting(collective, algorithm, n):
            for dtype in DTYPES:
                check(plans, dtype)
            assert plans.association_difference(torch.int32) == ""


Nested = Any  # a rank, or a tuple of them


def lowest(nested: Nested) -> int:
    return min(map(lowest, nested)) if isinstance(nested, tuple) else nested


def as_executed(values: Sequence[Nested]) -> Nested:
    first = sorted(values[:2], key=lowest)
    return (*first, *values[2:])


def nested(sum_: Sum | int) -> Nested:
    return tuple(map(nested, sum_.terms)) if isinstance(sum_, Sum) else sum_


@pytest.mark.parametrize(("collective", "algorithm"), NAMES)
def test_association_is_what_steps_add(collective: str, algorithm: str) -> None:
    for n in WORLD_SIZES[1:]:
        for plans in every_setting(collective, algorithm, n):
            ends = results(plans, range(n), as_executed)
            for rank in range(n):
                of_rank = plans.association(rank)
                assert list(of_rank) == list(promised(plans, rank))
                assert all(nested(of_rank[chunk]) == ends[rank, chunk] for chunk in of_rank)
            sums = plans.association()
            assert list(sums) == list(range(plans.num_chunks))
            for (_, chunk), expected in ends.items():
                assert nested(sums[chunk]) == expected
            assert len(set(sums.values())) == len({id(each) for each in sums.values()})


def test_what_a_sum_looks_like() -> None:
    ring = ringcomm.plan.all_reduce("ring", world_size=3)
    sums = ring.association()
    assert sums[0] == Sum((0, Sum((1, 2)))) != sums[1]
    assert [str(sums[chunk]) for chunk in range(3)] == [
        "rank 0 + (rank 1 + rank 2)",
        "(rank 0 + rank 2) + rank 1",
        "(rank 0 + rank 1) + rank 2",
    ]
    assert repr(sums[0]) == "<Sum rank 0 + (rank 1 + rank 2)>"
    assert ring.association_difference() == (
        "rank 0 ends with rank 0 + (rank 1 + rank 2) in chunk 0, and not with "
        "(rank 0 + rank 1) + rank 2"
    )
    assert str(ringcomm.plan.reduce("direct", world_size=1).association()[0]) == "rank 0"


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks(page("design/algorithms.md"), "python")
    exec(program, {"ringcomm": ringcomm})
    assert capsys.readouterr().out.strip() == program.rstrip().split("# ")[1]


def test_a_deep_sum_is_compared_and_shown() -> None:
    n = 5000
    (deep,) = ringcomm.plan.reduce("chain", world_size=n).association().values()
    (again,) = ringcomm.plan.reduce("chain", world_size=n).association().values()
    assert deep is not again and deep == again and hash(deep) == hash(again)
    assert str(deep).count("rank") == n
    assert len(repr(deep)) < 220


def test_what_has_no_association_is_refused() -> None:
    with pytest.raises(ValueError, match="all_gather adds nothing"):
        ringcomm.plan.all_gather(world_size=3).association()
    with pytest.raises(ValueError, match="rank must be between 0 and 2, got 3"):
        ringcomm.plan.all_reduce(world_size=3).association(3)
    wrong = Plans("all_reduce", [Plan(1, [])] * 2)
    for ask in (wrong.association, wrong.association_difference):
        with pytest.raises(PlanError, match="all_reduce promises"):
            ask()
    for plans in (ringcomm.plan.all_gather(world_size=3), ringcomm.plan.barrier(world_size=3)):
        assert plans.association_difference() == ""


def is_power_of_two(number: int) -> bool:
    return number.bit_count() == 1


def is_run_of_ones(number: int) -> bool:
    """Whether the number is 2^a - 2^b."""
    return is_power_of_two(number + (number & -number))


def is_even(hosts: Sequence[int]) -> bool:
    """Whether all have as many ranks, but for fewer on the last."""
    return set(hosts[:-1]) <= {hosts[0]} and hosts[-1] <= hosts[0]


def doubles(hosts: Sequence[int]) -> bool:
    return is_even(hosts) and is_power_of_two(hosts[0]) and is_run_of_ones(len(hosts))


def two_hosts(hosts: Sequence[int], first: bool, most: int) -> bool:
    return len(hosts) == 2 and first and hosts[1] <= most


# What the table of the page says, for n ranks, a root and the sizes of hosts.
WORDS: dict[str, Callable[[int, int, Sequence[int]], bool]] = {
    "any n": lambda n, root, hosts: True,
    "n ≤ 2": lambda n, root, hosts: n <= 2,
    "n ≤ 3": lambda n, root, hosts: n <= 3,
    "n = 3 to root 2": lambda n, root, hosts: n == 3 and root == 2,
    "n = 2ᵃ - 2ᵇ, such as 3, 4, 6, 7, 8, 12": lambda n, root, hosts: is_run_of_ones(n),
    "one host": lambda n, root, hosts: len(hosts) == 1,
    "two hosts, 2 ranks on the first, 1 or 2 on the second": lambda n, root, hosts: two_hosts(
        hosts, hosts[0] == 2, 2
    ),
    "two hosts, 2ᵃ ranks on the first, no more on the second": lambda n, root, hosts: two_hosts(
        hosts, is_power_of_two(hosts[0]), hosts[0]
    ),
    "2ᵃ - 2ᵇ hosts of 2ᶜ ranks, of which the last may have fewer": lambda n, root, hosts: doubles(
        hosts
    ),
}


def documented() -> dict[tuple[str, str], tuple[str, str]]:
    """The cells of both kinds of types, by collective and algorithm."""
    text = page("design/algorithms.md")
    table = text[text.index("| algorithm | of | float64, float32 |") :].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        algorithms, collectives, *cells = line.strip("| ").split(" | ")
        for algorithm in re.findall(r"`(\w+)`", algorithms):
            for collective in collectives.split(", "):
                found[collective.replace("-", "_"), algorithm] = (cells[0], cells[1])
    return found


def test_the_table_has_all_reductions() -> None:
    assert set(documented()) == set(NAMES)


@pytest.mark.parametrize(("collective", "algorithm"), NAMES)
def test_the_table_of_reproducible_plans(collective: str, algorithm: str) -> None:
    """By the numbers, not by what is said of the plans."""
    for dtype, cell in zip(
        (torch.float32, torch.bfloat16), documented()[collective, algorithm], strict=True
    ):
        for n in WORLD_SIZES:
            for setting in settings_of(collective, algorithm, n):
                hosts, root = setting.get("ranks_per_host", []), setting.get("root", 0)
                if algorithm == "hierarchical_doubling" and not is_even(hosts):
                    continue  # as the page says
                plans = getattr(ringcomm.plan, collective)(algorithm, world_size=n, **setting)
                said = any(WORDS[words](n, root, hosts) for words in cell.split("; "))
                assert said == (not differs(plans, dtype)), (setting, n, dtype)


def shuffled(order: Sequence[int]) -> Plans:
    """Each rank takes over the input of another one; then all exchange what they have."""
    n = len(order)
    plans = ringcomm.plan.all_reduce("one_shot", world_size=n)
    firsts = [
        Step(
            [Transfer(order.index(rank), 0)] if order[rank] != rank else [],
            [Transfer(order[rank], 0)] if order[rank] != rank else [],
        )
        for rank in range(n)
    ]
    return Plans(
        "all_reduce",
        [Plan(1, [first, *plan.steps]) for first, plan in zip(firsts, plans, strict=True)],
    )


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_inputs_in_any_order(n: int) -> None:
    for order in permutations(range(n)):
        for dtype in (torch.float32, torch.bfloat16):
            check(shuffled(order), dtype)


def test_the_first_chunk_may_be_of_another_rank_than_the_first() -> None:
    """Rank 0 ends with the canonical sum in chunk 0, and rank 1 does not; in chunk 1 none does."""
    draft = random_plans.Draft(3, 2).step()
    draft.send(1, 0, 0, add=True)
    draft.send(2, 0, 0, add=True)
    draft.send(0, 2, 0, add=False)
    draft.send(2, 1, 0, 2, add=True)
    draft.step()
    draft.send(2, 1, 0, add=True)
    draft.send(1, 0, 1, add=True)
    draft.step()
    draft.send(1, 2, 0, add=False)
    draft.send(0, 1, 1, add=False)
    draft.send(0, 2, 1, add=False)
    plans = Plans("all_reduce", draft.plans())
    assert plans.association_difference() == (
        "rank 1 ends with rank 0 + (rank 1 + rank 2) in chunk 0, and not with "
        "(rank 0 + rank 1) + rank 2"
    )
    check(plans, torch.float32)


def adds_up(plans: Plans) -> bool:
    return plans.collective in REDUCTIONS


RANDOM = st.one_of(
    random_plans.trees(),
    random_plans.rings(),
    random_plans.hypercubes(),
    random_plans.known(),
    random_plans.two_sums(),
).filter(adds_up)


@settings(max_examples=60, deadline=None)
@given(plans=RANDOM)
def test_random_plans(plans: Plans) -> None:
    plans.verify()
    for dtype in (torch.float32, torch.bfloat16):
        check(plans, dtype)
    ends = results(plans, range(len(plans)), as_executed)
    for rank in range(len(plans)):
        for chunk, sum_ in plans.association(rank).items():
            expected = ends[rank, chunk]
            assert nested(sum_) == (expected if isinstance(expected, tuple) else (expected,))
