"""Algorithms by their names, built in and registered, as groups carry them out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from plan_simulator import Simulator
from ranks import Rank, on_processes, outcomes

import ringcomm
from ringcomm import Options, launchers, plan
from ringcomm.plan import Plan, PlanError, Plans, Step, Transfer, registry
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.plans import ROOTED

LINE = 16  # float32 in what chunks are whole multiples of; 400 of them are too much to be eager


def join(rank: Rank, options: Any = None) -> None:
    """Makes the default group."""
    dist.init_process_group(
        "ring",
        store=rank.store,
        rank=rank.rank,
        world_size=rank.world_size,
        pg_options=options,
    )


def backwards(rank: int, world_size: int) -> Plan:
    """Everything is added on the way from the last rank to rank 0, which then sends it to all."""
    steps = []
    if rank < world_size - 1:
        steps.append(Step(recvs=[Transfer(rank + 1, 0, reduce=True)]))
    if rank > 0:
        steps.append(Step(sends=[Transfer(rank - 1, 0)]))
        steps.append(Step(recvs=[Transfer(0, 0)]))
    else:
        steps.append(Step(sends=[Transfer(peer, 0) for peer in range(1, world_size)]))
    return Plan(1, steps)


def forgets_one(rank: int, world_size: int) -> Plan:
    """The same, but that rank 1 sends on without adding."""
    plan = backwards(rank, world_size)
    if rank != 1:
        return plan
    return Plan(1, [Step(recvs=[Transfer(2, 0)]), *plan.steps[1:]])


def sums_backwards(inputs: list[torch.Tensor]) -> torch.Tensor:
    total = inputs[-1]
    for each in reversed(inputs[:-1]):
        total = total + each
    return total


def inputs_of(world_size: int, count: int) -> list[torch.Tensor]:
    return [
        torch.randn(count, generator=torch.Generator().manual_seed(rank))
        for rank in range(world_size)
    ]


def runs_backwards(rank: Rank, make: str) -> list[bool]:
    plan.register("all_reduce", "backwards", backwards)
    join(rank, Options(algorithm="backwards") if make == "pg_options" else None)
    group: Any = None
    if make == "new_group":
        group = ringcomm.new_group(algorithm={"all_reduce": "backwards"})
    elif make == "environment":
        os.environ["RINGCOMM_ALGORITHM"] = "all_reduce=backwards, all_gather=ring"
        group = dist.new_group(backend="ring")
    same = []
    for count in (1, 5, 1000, 100_000):
        inputs = inputs_of(rank.world_size, count)
        mine = inputs[rank.rank].clone()
        dist.all_reduce(mine, group=group)
        same.append(torch.equal(mine, sums_backwards(inputs)))
    dist.barrier()
    dist.destroy_process_group()
    return same


# In another order sums of float32 have other bits: it is this plan that has been carried out, also
# where tensors are small.
@pytest.mark.parametrize("make", ["pg_options", "new_group", "environment"])
def test_a_registered_plan_is_carried_out_at_every_size(make: str) -> None:
    for same in on_processes(runs_backwards, 5, make):
        assert same == [True] * 4


def goes_on_after_bad_plans(rank: Rank, bad_on: list[int]) -> tuple[list[str], list[str]]:
    bad = rank.rank in bad_on
    plan.register("all_reduce", "mine", forgets_one if bad else backwards)
    join(rank, Options("mine"))
    kinds, texts = [], []
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(3))
        except Exception as error:
            kinds.append(type(error).__name__)
            texts.append(str(error))
    mine = torch.full((2,), float(rank.rank))
    gathered = [torch.empty(2) for _ in range(rank.world_size)]
    dist.all_gather(gathered, mine)  # by another plan
    assert [tensor[0].item() for tensor in gathered] == list(range(rank.world_size))
    dist.destroy_process_group()
    return kinds, texts


def test_a_wrong_plan_is_an_error_on_every_rank_and_the_group_goes_on() -> None:
    for kinds, texts in on_processes(goes_on_after_bad_plans, 4, [0, 1, 2, 3]):
        assert kinds == ["PlanError"] * 2
        assert all('all_reduce by the plan "mine" on 4 ranks: ' in text for text in texts)
        assert all("contributions of" in text for text in texts)


def test_a_plan_that_is_wrong_on_one_rank_is_an_error_on_all() -> None:
    results = on_processes(goes_on_after_bad_plans, 4, [2])
    for rank, (kinds, texts) in enumerate(results):
        assert kinds == ["PlanError" if rank == 2 else "DistBackendError"] * 2, texts
        wanted = "contributions of" if rank == 2 else "the plan for it is refused"
        assert all(wanted in text for text in texts), (rank, texts)


def does_nothing(rank: int, world_size: int) -> Plan:
    return Plan(world_size, [])


def does_nothing_to_all(rank: int, world_size: int) -> Plan:
    return Plan(world_size**2, [])


def does_nothing_from(rank: int, world_size: int, root: int) -> Plan:
    return Plan(world_size, [])


def kinds_by_call(rank: Rank) -> dict[str, str]:
    """What each direct call raises whose plan is wrong."""
    generators: dict[str, Callable[..., Plan]] = {
        **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), does_nothing),
        **dict.fromkeys(ROOTED, does_nothing_from),
        "all_to_all": does_nothing_to_all,
    }
    for name, generator in generators.items():
        plan.register(name, "wrong", generator)
    group = ringcomm.new_group(algorithm="wrong")
    n = rank.world_size
    one, whole = torch.ones(2), torch.ones(2 * n)
    parts = list(torch.ones(n, 2).unbind())
    at_root = parts if rank.rank == 0 else None
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: ringcomm.all_reduce(one, group=group),
        "reduce_scatter_tensor": lambda: ringcomm.reduce_scatter_tensor(one, whole, group=group),
        "reduce_scatter": lambda: ringcomm.reduce_scatter(one, parts, group=group),
        "all_gather_into_tensor": lambda: ringcomm.all_gather_into_tensor(whole, one, group=group),
        "all_gather": lambda: ringcomm.all_gather(parts, one, group=group),
        "broadcast": lambda: ringcomm.broadcast(one, 0, group=group),
        "reduce": lambda: ringcomm.reduce(one, 0, group=group),
        "all_to_all_single": lambda: ringcomm.all_to_all_single(whole, whole.clone(), group=group),
        "all_to_all": lambda: ringcomm.all_to_all(parts, [*map(torch.clone, parts)], group=group),
        "gather": lambda: ringcomm.gather(one, at_root, 0, group=group),
        "scatter": lambda: ringcomm.scatter(one, at_root, 0, group=group),
    }
    kinds = {}
    for _ in range(2):  # the second call may be fast
        for name, call in calls.items():
            try:
                call()
                kinds[name] = "nothing"
            except Exception as error:
                kinds[name] = type(error).__name__
    return kinds


def test_every_direct_call_raises_plan_errors_by_their_type() -> None:
    for kinds in on_processes(kinds_by_call, 2, backend="ring"):
        assert kinds == dict.fromkeys(kinds, "PlanError"), kinds


def differing(rank: int, world_size: int) -> Plan:
    """As direct, but for an empty step."""
    return Plan(world_size, [Step(), *plan.all_reduce("direct", world_size=world_size)[rank].steps])


def runs_another_plan(rank: Rank) -> str:
    generator: Callable[..., Plan] = differing if rank.rank == 1 else backwards
    plan.register("all_reduce", "mine", generator)
    join(rank, Options("mine"))
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(3))
    dist.barrier()
    dist.destroy_process_group()
    return str(caught.value)


def test_another_plan_on_one_rank_raises_on_all() -> None:
    for text in on_processes(runs_another_plan, 3):
        assert "ranks 0 and 2 called all_reduce(" in text and "but rank 1 called" in text
        assert "by another plan" in text


def raises(rank: int, world_size: int) -> Plan:
    raise ArithmeticError("no plan today")


def raises_in_the_generator(rank: Rank) -> str:
    plan.register("all_reduce", "mine", raises)
    join(rank, Options("mine"))
    with pytest.raises(PlanError) as caught:
        dist.all_reduce(torch.ones(3))
    work = dist.all_reduce(torch.ones(3), async_op=True)
    with pytest.raises(PlanError):
        work.wait()
    dist.barrier()
    dist.destroy_process_group()
    return str(caught.value)


def test_what_a_generator_raises_reaches_all_ranks() -> None:
    for text in on_processes(raises_in_the_generator, 2):
        assert "its generator raised ArithmeticError: no plan today" in text


def all_at_once(rank: int, world_size: int) -> Plan:
    """Of two ranks, which exchange 10,000 chunks in one step."""
    num_chunks = 10_000
    peer = 1 - rank
    return Plan(
        num_chunks,
        [Step([Transfer(peer, 0, num_chunks)], [Transfer(peer, 0, num_chunks, reduce=True)])],
    )


def has_too_few_slots(rank: Rank) -> str:
    plan.register("all_reduce", "mine", all_at_once)
    join(rank, Options("mine"))
    with pytest.raises(ValueError) as caught:
        dist.all_reduce(torch.ones(3))
    dist.barrier()
    dist.destroy_process_group()
    return str(caught.value)


def test_a_plan_with_too_many_slots_says_which_bound() -> None:
    for text in on_processes(has_too_few_slots, 2):
        assert "the plan needs 10000 slots in each rank's outbox" in text
        assert "has at most 8192 of 64 bytes" in text


def recursing(rank: int, world_size: int) -> Plan:
    return plan.all_reduce("recursing", world_size=world_size)[rank]


HOSTILE: dict[str, tuple[Callable[..., Any], str]] = {
    "recursing": (recursing, "its generator raised RecursionError: maximum recursion depth"),
    "nothing": (lambda rank, world_size: None, "must return its Plan, got a NoneType"),
    "a_list": (lambda world_size: [1, 2], "returns[0] must be a Plan, got a int"),
    "one_plan": (lambda world_size: [Plan(1, [])], "must have 2 plans, and there are 1"),
    "no_chunks": (
        lambda rank, world_size: Plan(0, []),
        'all_reduce by the plan "no_chunks" on 2 ranks: all_reduce takes at least one chunk',
    ),
    "two_sizes": (lambda rank, world_size: Plan(1 + rank, []), "rank 0 one of 1"),
    "ten_million": (
        lambda rank, world_size: Plan(10_000_000, []),
        "has 20000000 results, and plans may have 2097152; at most 1048576 chunks would do",
    ),
    "largest": (lambda rank, world_size: Plan(2**31 - 1, []), "and plans may have 2097152"),
    "steps": (
        lambda rank, world_size: Plan(1, [Step()] * (3 << 20)),
        "the plans have 6291456 steps, and plans may have 2097152",
    ),
    "no_rank": (lambda rank, world_size: Plan(1, [Step([Transfer(7, 0)])]), "in a group of 2"),
    "below": (lambda rank, world_size: Plan(1, [Step([Transfer(1 - rank, -1)])]), "of 1 chunks"),
}


def refuses_hostile_plans(rank: Rank) -> dict[str, str]:
    join(rank)
    said = {}
    for name, (generator, _) in HOSTILE.items():
        plan.register("all_reduce", name, generator)
        group = ringcomm.new_group(algorithm=name)
        with pytest.raises(PlanError) as caught:
            dist.all_reduce(torch.ones(3), group=group)
        said[name] = str(caught.value)
        dist.barrier(group=group)  # it goes on
    dist.destroy_process_group()
    return said


def test_every_rank_learns_what_is_wrong_with_hostile_plans() -> None:
    for said in on_processes(refuses_hostile_plans, 2):
        assert {name for name, (_, text) in HOSTILE.items() if text not in said[name]} == set()


def pattern(rank: int, world_size: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32) * world_size + rank


def runs_every_algorithm(rank: Rank, collective: str, count: int) -> list[str]:
    me, n, root = rank.rank, rank.world_size, 1
    every = [pattern(r, n, count) for r in range(n)]
    total = torch.stack(every).sum(0, dtype=torch.int32)
    blocks = [pattern(r, n, n * count) for r in range(n)]
    wrong = []
    join(rank)
    for name in ALGORITHMS[collective]:
        group: Any = ringcomm.new_group(
            algorithm={collective: name}, ranks_per_host=[n - 1, 1] if n > 1 else None
        )
        mine, expected, is_mine = every[me].clone(), total, True
        result = mine
        if collective == "all_reduce":
            dist.all_reduce(mine, group=group)
        elif collective == "reduce":
            dist.reduce(mine, root, group=group)
            is_mine = me == root
        elif collective == "broadcast":
            dist.broadcast(mine, root, group=group)
            expected = every[root]
        elif collective == "reduce_scatter":
            result = torch.empty(count, dtype=torch.int32)
            dist.reduce_scatter_tensor(result, blocks[me], group=group)
            expected = torch.stack(blocks).sum(0, dtype=torch.int32).view(n, count)[me]
        elif collective == "all_gather":
            result = torch.empty(n * count, dtype=torch.int32)
            dist.all_gather_into_tensor(result, mine, group=group)
            expected = torch.cat(every)
        elif collective == "all_to_all":
            result = torch.empty(n * count, dtype=torch.int32)
            dist.all_to_all_single(result, blocks[me], group=group)
            expected = torch.cat([block.view(n, count)[me] for block in blocks])
        elif collective == "gather":
            parts = [torch.empty_like(mine) for _ in range(n)] if me == root else None
            dist.gather(mine, parts, root, group=group)
            result, expected, is_mine = torch.cat(parts or [mine]), torch.cat(every), me == root
        else:
            parts = list(blocks[root].view(n, count)) if me == root else None
            dist.scatter(mine, parts, root, group=group)
            expected = blocks[root].view(n, count)[me]
        if is_mine and not torch.equal(result, expected):
            wrong.append(name)
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3, 6])
@pytest.mark.parametrize("collective", [each for each in ALGORITHMS if each != "barrier"])
def test_every_algorithm_of_the_table_runs(collective: str, world_size: int) -> None:
    for wrong in on_processes(runs_every_algorithm, world_size, collective, 50_003):
        assert wrong == []


def runs_hierarchical(rank: Rank, sizes: list[int]) -> dict[str, np.ndarray]:
    me, n = rank.rank, rank.world_size
    count = n * LINE * 400
    join(rank, Options("hierarchical", ranks_per_host=sizes))
    mine = inputs_of(n, count)[me]
    results = {"all_reduce": mine.clone(), "reduce_scatter": torch.empty(count // n)}
    dist.all_reduce(results["all_reduce"])
    dist.reduce_scatter_tensor(results["reduce_scatter"], mine)
    results["all_gather"] = torch.empty(count)
    dist.all_gather_into_tensor(results["all_gather"], mine[: count // n].clone())
    dist.destroy_process_group()
    return {name: tensor.numpy() for name, tensor in results.items()}


def carried_out(plans: Plans, inputs: list[np.ndarray]) -> list[np.ndarray]:
    data = [each.reshape(plans.num_chunks, -1).copy() for each in inputs]
    Simulator(list(plans), data, random.Random(0), buffered=True).run()
    return [each.reshape(-1) for each in data]


@pytest.mark.parametrize(
    "sizes",
    [[2, 2], [2, 2, 2], [3, 3], [4, 4, 4, 4], [3, 1], [1, 3, 2]],
    ids=str,
)
def test_hierarchical_plans_run_bit_for_bit_as_verified(sizes: list[int]) -> None:
    n = sum(sizes)
    count = n * LINE * 400
    share = count // n
    results = on_processes(runs_hierarchical, n, sizes)
    inputs = [tensor.numpy() for tensor in inputs_of(n, count)]
    for collective in ("all_reduce", "reduce_scatter"):
        plans = getattr(plan, collective)("hierarchical", world_size=n, ranks_per_host=sizes)
        plans.verify()
        for rank, expected in enumerate(carried_out(plans, inputs)):
            if collective == "reduce_scatter":
                expected = expected[rank * share : (rank + 1) * share]
            assert np.array_equal(results[rank][collective], expected), (collective, rank)
    gathered = np.concatenate([each[:share] for each in inputs])
    for rank in range(n):
        assert np.array_equal(results[rank]["all_gather"], gathered), rank


def one_rank(rank: Rank, options: Options) -> None:
    join(rank, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options("tree"), "algorithm is 'tree'; it must be one of auto, ring, direct, "),
        (Options("dissemination"), "algorithm is 'dissemination'; it must be"),
        (Options({"all_reduce": "bruck"}), "all_reduce must be one of auto, ring, "),
        (Options("all_sum=ring"), "'all_sum' is none of all_reduce, "),
        (Options("all_reduce=ring,"), "it must be one of auto"),
        (Options(ranks_per_host=[1, 1]), "must add up to world_size, which is 1"),
        (Options(ranks_per_host=0), "must be between 1 and 1, got 0"),
    ],
)
def test_wrong_options(options: Options, message: str) -> None:
    [result] = outcomes(one_rank, 1, options)
    assert isinstance(result.error, ValueError) and message in str(result.error), result


def test_options_of_another_type_are_refused() -> None:
    [result] = outcomes(one_rank, 1, {"algorithm": "ring"})
    assert isinstance(result.error, ValueError)
    assert "must be ringcomm.Options(...), got {'algorithm': 'ring'}" in str(result.error)


def inits_twice(rank: Rank) -> None:
    ringcomm.init(algorithm="direct")
    with pytest.raises(ValueError, match=r"there is a default group already.*new_group"):
        ringcomm.init(algorithm="ring")
    with pytest.raises(ValueError, match="either pg_options or"):
        ringcomm.new_group(pg_options=Options(), algorithm="ring")
    ringcomm.destroy_process_group()


def test_init_gives_a_new_group_its_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in launchers.LAUNCHERS:
        monkeypatch.delenv(launcher.rank, raising=False)
        monkeypatch.delenv(launcher.world_size, raising=False)
    on_processes(inits_twice, 1)


def hosts_from_the_environment(rank: Rank) -> list[int]:
    from ringcomm.options import hosts

    os.environ["RINGCOMM_RANKS_PER_HOST"] = "2,3,1"
    assert hosts(Options(), [1, 2, 5]) == [0, 1, 2]
    os.environ["RINGCOMM_RANKS_PER_HOST"] = "4"
    assert hosts(Options(), [0, 3, 4, 11]) == [0, 0, 1, 2]
    assert hosts(Options(ranks_per_host=2), [7, 8, 9, 10]) == [0, 0, 1, 1]
    os.environ["RINGCOMM_RANKS_PER_HOST"] = "2,1"
    with pytest.raises(ValueError, match="is 3 ranks, and there is a rank 3"):
        hosts(Options(), [3])
    os.environ["RINGCOMM_RANKS_PER_HOST"] = "two"
    with pytest.raises(ValueError, match="'two'; it must be one integer from 1 to 2147483647"):
        hosts(Options(), [0])
    return []


def test_hosts_from_the_environment() -> None:
    on_processes(hosts_from_the_environment, 1)


def test_registered_names_are_listed() -> None:
    plan.register("all_reduce", "mine", backwards)
    assert registry.names("all_reduce") == ["mine"]
    assert registry.names("reduce") == []
    assert {"broadcast", "reduce", "gather", "scatter"} == ROOTED
