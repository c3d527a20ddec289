"""Which algorithms there are for each collective, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ringcomm._C import plan as _plan
from ringcomm._C.plan import Plan
from ringcomm._plans import MAX_WORLD_SIZE, ROOTED, integer, one_of

_HALVES = ("reduce-scatter", "all-gather")
_INSIDE, _ACROSS = "inside hosts", "across hosts"


class Algorithm(NamedTuple):
    """A generator of plans, of rank, world_size and, where it has them, ranks_per_host and root."""

    generate: Callable[..., Plan]
    phases: tuple[str, ...] = ()  # names for tables, of parts of the plan
    two_level: bool = False  # takes ranks_per_host; its phases are inside or across hosts


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm(_plan.ring_all_reduce, _HALVES),
        "direct": Algorithm(_plan.direct_all_reduce, _HALVES),
        "one_shot": Algorithm(_plan.one_shot_all_reduce),
        "hierarchical": Algorithm(
            _plan.hierarchical_all_reduce,
            (
                f"reduce-scatter {_INSIDE}",
                f"reduce-scatter {_ACROSS}",
                f"all-gather {_ACROSS}",
                f"all-gather {_INSIDE}",
            ),
            two_level=True,
        ),
    },
    "reduce_scatter": {
        "ring": Algorithm(_plan.ring_reduce_scatter),
        "direct": Algorithm(_plan.direct_reduce_scatter),
        "hierarchical": Algorithm(
            _plan.hierarchical_reduce_scatter, (_INSIDE, _ACROSS), two_level=True
        ),
    },
    "all_gather": {
        "ring": Algorithm(_plan.ring_all_gather),
        "direct": Algorithm(_plan.direct_all_gather),
        "hierarchical": Algorithm(
            _plan.hierarchical_all_gather, (_ACROSS, _INSIDE), two_level=True
        ),
    },
    "broadcast": {
        "chain": Algorithm(_plan.chain_broadcast),
        "direct": Algorithm(_plan.direct_broadcast),
    },
    "reduce": {
        "chain": Algorithm(_plan.chain_reduce),
        "direct": Algorithm(_plan.direct_reduce, ("reduce-scatter", "gather")),
    },
    "gather": {"direct": Algorithm(_plan.gather)},
    "scatter": {"direct": Algorithm(_plan.scatter)},
    "all_to_all": {"direct": Algorithm(_plan.all_to_all)},
    "barrier": {"dissemination": Algorithm(_plan.barrier)},
}


class Chosen(NamedTuple):
    """An algorithm with its arguments but the rank."""

    plan_of: Callable[[int], Plan]  # of the rank
    phases: tuple[tuple[str, int], ...]  # names with their numbers of steps


def choose(
    collective: str, algorithm: str, world_size: int, root: int, ranks_per_host: int | None
) -> Chosen:
    """The algorithm by its name.

    Raises:
        ValueError: an unknown collective or algorithm, or an argument that is missing, out of range
            or not one of the algorithm's.
    """
    if collective not in ALGORITHMS:
        raise ValueError(f"collective must be {one_of(ALGORITHMS)}, got {collective!r}")
    algorithms = ALGORITHMS[collective]
    if algorithm not in algorithms:
        raise ValueError(
            f"algorithm of {collective} must be {one_of(algorithms)}, got {algorithm!r}"
        )
    chosen = algorithms[algorithm]
    world_size = integer("world_size", world_size, 1, MAX_WORLD_SIZE)
    root = integer("root", root, 0, world_size - 1)
    arguments = {"world_size": world_size}
    if collective in ROOTED:
        arguments["root"] = root
    if chosen.two_level:
        if ranks_per_host is None:
            raise ValueError(f"algorithm {algorithm!r} needs ranks_per_host")
        ranks_per_host = integer("ranks_per_host", ranks_per_host, 1, world_size)
        arguments["ranks_per_host"] = ranks_per_host
    elif ranks_per_host is not None:
        raise ValueError(f"ranks_per_host={ranks_per_host} has no meaning for {algorithm!r}")
    plan_of = partial(chosen.generate, **arguments)
    return Chosen(plan_of, _phases(chosen, plan_of, world_size, ranks_per_host))


def _phases(
    algorithm: Algorithm,
    plan_of: Callable[[int], Plan],
    world_size: int,
    ranks_per_host: int | None,
) -> tuple[tuple[str, int], ...]:
    if not algorithm.phases:
        return ()
    if ranks_per_host is None:  # phases of equally many steps
        num_steps = len(plan_of(0).steps) // len(algorithm.phases)
        return tuple((phase, num_steps) for phase in algorithm.phases)
    num_steps_of = {_INSIDE: ranks_per_host - 1, _ACROSS: world_size // ranks_per_host - 1}
    return tuple(
        (phase, num_steps)
        for phase in algorithm.phases
        for level, num_steps in num_steps_of.items()
        if phase.endswith(level)
    )
