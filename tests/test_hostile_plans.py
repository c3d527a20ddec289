"""Plans that are wrong or too large are refused at once, and the error says what would do.

Those that reach the core as plans are in tests/cpp/test_hostile_plans.cpp, too; here are generators
and types that are none, and what Python does with plans: it keeps, prints and draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ringcomm import plan
from ringcomm.explain import follow
from ringcomm.plan import LINKS, Network, Plan, PlanError, Plans, Step, Transfer

MILLION = 1_000_000
LARGEST = 2**31 - 1


def swap(rank: int, count: int = 1) -> Step:
    """The sum of two ranks."""
    return Step([Transfer(1 - rank, 0, count)], [Transfer(1 - rank, 0, count, True)])


def both(*plans: Plan, collective: str = "all_reduce", root: int = 0) -> Callable[[], None]:
    """Verifies the plans of two ranks, of which one stands for the other."""
    return lambda: Plans(collective, [plans[0], plans[-1]], root=root).verify()


def sent(transfer: Transfer, num_chunks: int = 1) -> Callable[[], None]:
    return both(Plan(num_chunks, [Step([transfer])]), Plan(num_chunks, []))


def generated(generator: Any) -> Callable[[], None]:
    """Registers it, and asks for the plans of two ranks."""

    def ask() -> None:
        plan.register("all_reduce", "mine", generator)
        plan.all_reduce("mine", world_size=2).verify()

    return ask


def recursing(rank: int, world_size: int) -> Plan:
    return plan.all_reduce("mine", world_size=world_size)[rank]


def simulating_itself(rank: int, world_size: int) -> Plan:
    network = Network(LINKS["ndr"])
    plan.simulate("all_reduce", "mine", world_size=world_size, nbytes=1, network=network)
    return Plan(1, [])


def lazy(world_size: int) -> Iterator[Plan]:
    yield Plan(1, [])


def raising(rank: int, world_size: int) -> Plan:
    raise KeyError("no such rank")


HOSTILE = {
    "a negative peer": (
        sent(Transfer(-1, 0)),
        PlanError,
        "rank 0, step 0: sends chunk 0 to rank -1, in a group of 2",
    ),
    "a peer too large": (sent(Transfer(LARGEST, 0)), PlanError, "rank 2147483647, in a group of 2"),
    "itself": (sent(Transfer(0, 0)), PlanError, "to rank 0, which is itself"),
    "a negative chunk": (sent(Transfer(1, -5)), PlanError, "chunk -5 to rank 1, of 1 chunks"),
    "chunks past the end": (
        sent(Transfer(1, 3, 2), 4),
        PlanError,
        "sends chunks 3-4 to rank 1, of 4 chunks",
    ),
    "a range that overflows": (
        sent(Transfer(1, LARGEST, LARGEST), 4),
        PlanError,
        "sends chunks 2147483647-4294967293 to rank 1, of 4 chunks",
    ),
    "a send that adds": (sent(Transfer(1, 0, 1, True)), PlanError, "with reduce, which is for rec"),
    "fewer chunks than none": (both(Plan(-1, [])), ValueError, "at least one chunk, got -1 chunks"),
    "no chunks": (both(Plan(0, [])), ValueError, "takes at least one chunk, got 0 chunks"),
    "ten million chunks": (
        both(Plan(10 * MILLION, [])),
        PlanError,
        "has 20000000 results, and plans may have 2097152; at most 1048576 chunks would do",
    ),
    "as many chunks as can be said": (
        both(Plan(LARGEST, [])),
        PlanError,
        "has 4294967294 results, and plans may have 2097152",
    ),
    "too many chunks to send": (
        both(*(Plan(1 << 20, [swap(rank, 1 << 20)] * 3) for rank in range(2))),
        PlanError,
        "have 6291456 chunks to send, and plans may have 2097152; fewer and larger chunks",
    ),
    "different numbers of chunks": (
        both(Plan(1, []), Plan(2, [])),
        PlanError,
        "rank 1 has a plan of 2 chunks, rank 0 one of 1",
    ),
    "chunks that ranks cannot share": (
        both(Plan(3, []), collective="all_gather"),
        ValueError,
        "takes a multiple of world_size chunks, got 3 chunks for a world_size of 2",
    ),
    "a circle": (
        both(
            *(
                Plan(1, [Step(recvs=[Transfer(1 - r, 0, 1, True)]), Step([Transfer(1 - r, 0)])])
                for r in range(2)
            )
        ),
        PlanError,
        "deadlock: rank 0 at step 0 waits to receive chunk 0 from rank 1",
    ),
    "no partner": (
        both(Plan(1, [Step([Transfer(1, 0)])]), Plan(1, [])),
        PlanError,
        "rank 0, step 0: sends chunk 0 to rank 1, which does not receive it",
    ),
    "a contribution twice": (
        both(*(Plan(1, [swap(rank)] * 2) for rank in range(2))),
        PlanError,
        "which counts the contribution of rank",
    ),
    "too many steps": (
        both(Plan(1, [Step()] * (1 << 21))),
        PlanError,
        "have 4194304 steps, and plans may have 2097152; fewer steps or ranks would do",
    ),
    "a peer that is None": (
        lambda: Transfer(None, 0),
        TypeError,
        "peer must be an integer, got None",
    ),
    "a peer that is a string": (lambda: Transfer("1", 0), TypeError, "peer must be an integer"),
    "a chunk that is a float": (
        lambda: Transfer(0, 1.0),
        TypeError,
        "first_chunk must be an integer, got 1.0",
    ),
    "a chunk that is a numpy float": (
        lambda: Transfer(0, np.float32(1)),
        TypeError,
        "first_chunk must be an integer",
    ),
    "a number that is no int of C": (
        lambda: Transfer(0, 0, 2**31),
        ValueError,
        "num_chunks must be between -2147483648 and 2147483647, got 2147483648",
    ),
    "a number that is no int at all": (
        lambda: Plan(2**80, []),
        ValueError,
        "num_chunks must be between -2147483648 and 2147483647",
    ),
    "steps that are none": (
        lambda: Plan(1, None),
        TypeError,
        "steps must be a sequence of Step, got <class 'NoneType'>",
    ),
    "a step that is none, behind a million": (
        lambda: Plan(1, [Step()] * MILLION + [3]),
        TypeError,
        r"steps[1000000] must be a Step, got <class 'int'>",
    ),
    "a transfer that is none": (
        lambda: Step([Transfer(0, 0), "x"]),
        TypeError,
        "sends[1] must be a Transfer, got <class 'str'>",
    ),
    "plans that are none": (
        lambda: Plans("all_reduce", 5),
        ValueError,
        "plans must be a list of Plan, got a int",
    ),
    "a plan that is none": (
        lambda: Plans("all_reduce", [Plan(1, []), None]),
        ValueError,
        "plans[1] must be a Plan, got a NoneType",
    ),
    "a generator of something else": (
        generated(lambda rank, world_size: "plan"),
        ValueError,
        "must return its Plan, got a str",
    ),
    "a generator of None": (
        generated(lambda world_size: None),
        ValueError,
        "must return a Plans or a list of Plan, got a NoneType",
    ),
    "a generator of a number": (
        generated(lambda world_size: 2.5),
        ValueError,
        "must return a Plans or a list of Plan, got a float",
    ),
    "a generator of other things": (
        generated(lambda world_size: [Plan(1, []), 1]),
        ValueError,
        "what 'mine' returns[1] must be a Plan, got a int",
    ),
    "a lazy generator": (generated(lazy), ValueError, "a list of Plan, got a generator"),
    "a generator that raises": (generated(raising), KeyError, "no such rank"),
    "a generator that recurses": (generated(recursing), RecursionError, "maximum recursion depth"),
    "a generator that simulates itself": (
        generated(simulating_itself),
        RecursionError,
        "maximum recursion depth",
    ),
    "plans of different chunks by rank": (
        generated(lambda rank, world_size: Plan(1 + rank, [])),
        PlanError,
        "rank 1 has a plan of 2 chunks, rank 0 one of 1",
    ),
    "a ring of too many ranks": (
        lambda: plan.all_reduce(world_size=2**18),
        ValueError,
        "the plans of 262144 ranks have more than 33554432 steps and transfers in all",
    ),
    "more ranks than there are": (
        lambda: plan.all_reduce(world_size=2**30),
        ValueError,
        "world_size must be between 1 and 262144, got 1073741824",
    ),
    "a picture of too many chunks": (
        lambda: follow(Plans("broadcast", [Plan(2**24 + 1, [])])),
        ValueError,
        "a picture shows at most 16777216 pairs of rank and chunk, and there are 16777217",
    ),
    "a picture of too many steps": (
        lambda: follow(Plans("broadcast", [Plan(1, [Step()] * MILLION)])),
        ValueError,
        "a picture shows at most 262144 steps and transfers, and there are 1000000",
    ),
    "a simulation of fewer chunks than none": (
        lambda: Plans("all_reduce", [Plan(-1, [])] * 2).simulate(1, Network(LINKS["ndr"])),
        PlanError,
        "has a plan of -1 chunks, and 0 is the least",
    ),
    "a simulation of many steps": (
        lambda: Plans("all_reduce", [Plan(1, [Step()] * (3 * MILLION)), Plan(1, [])]).simulate(
            1, Network(LINKS["ndr"], LINKS["ndr"], ranks_per_host=1)
        ),
        None,
        "",
    ),
    "a program of too many chunks": (
        lambda: Plans("all_reduce", [Plan(LARGEST, [])] * 2).program(0),
        PlanError,
        "has 4294967294 results, and plans may have 2097152",
    ),
    "a program of chunks past the end": (
        lambda: Plans(
            "all_reduce", [Plan(1, [Step([Transfer(1 - r, -9)])]) for r in range(2)]
        ).program(0),
        PlanError,
        "sends chunk -9 to rank 1, of 1 chunks",
    ),
}


@pytest.mark.parametrize(("look", "kind", "message"), HOSTILE.values(), ids=HOSTILE)
def test_is_refused_with_what_would_do(
    look: Callable[[], None], kind: type[Exception] | None, message: str
) -> None:
    if kind is None:
        look()
    else:
        with pytest.raises(kind) as caught:
            look()
        assert message in str(caught.value)
        assert len(str(caught.value)) < 1000


def test_a_million_steps_are_right() -> None:
    plans = Plans(
        "all_reduce", [Plan(1, [*[Step()] * (MILLION - 1), swap(rank)]) for rank in range(2)]
    )
    plans.verify()
    assert plans.num_steps == MILLION
    assert "steps and transfers, and a table shows 524288" in str(plans)
    assert str(plans) == repr(plans)
    assert len(plans.program(0)) == 2


def test_numpy_integers_are_integers() -> None:
    transfer = Transfer(np.int64(1), np.uint8(0), np.int32(2))
    assert transfer == Transfer(1, 0, 2)
    assert Plan(np.int16(3), iter([Step((transfer,))])) == Plan(3, [Step([transfer])])
