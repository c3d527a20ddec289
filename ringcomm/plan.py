"""Plans: what each rank sends and receives in a collective, as data to print, check and change.

The plans here are the ones that the executors carry out; they come from the same C++ functions.

    >>> import ringcomm
    >>> plans = ringcomm.plan.all_reduce("ring", world_size=4)
    >>> print(plans)  # a table: step, rank, what is sent, what is received
    >>> plans.verify()  # proves that every rank ends with the sum, and that nothing can deadlock
    >>> plans[2].steps[0].sends  # rank 2's sends in its first step

Plans written by hand, of `Plan`, `Step` and `Transfer`, are checked and printed in the same way:
``Plans("all_reduce", [plan_of_rank_0, plan_of_rank_1])``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ringcomm._C import plan as _plan
from ringcomm._C.plan import Plan, PlanError, Step, Transfer
from ringcomm._plans import MAX_WORLD_SIZE, ROOTED, Plans, integer, one_of

__all__ = [
    "Plan",
    "PlanError",
    "Plans",
    "Step",
    "Transfer",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


class _Algorithm(NamedTuple):
    generate: Callable[..., Plan]  # of rank, world_size and, for some collectives, root
    phases: tuple[str, ...] = ()  # of equally many steps


_ALGORITHMS: dict[str, dict[str, _Algorithm]] = {
    "all_reduce": {
        "ring": _Algorithm(_plan.ring_all_reduce, ("reduce-scatter", "all-gather")),
        "direct": _Algorithm(_plan.direct_all_reduce, ("reduce-scatter", "all-gather")),
        "one_shot": _Algorithm(_plan.one_shot_all_reduce),
    },
    "reduce_scatter": {
        "ring": _Algorithm(_plan.ring_reduce_scatter),
        "direct": _Algorithm(_plan.direct_reduce_scatter),
    },
    "all_gather": {
        "ring": _Algorithm(_plan.ring_all_gather),
        "direct": _Algorithm(_plan.direct_all_gather),
    },
    "broadcast": {
        "chain": _Algorithm(_plan.chain_broadcast),
        "direct": _Algorithm(_plan.direct_broadcast),
    },
    "reduce": {
        "chain": _Algorithm(_plan.chain_reduce),
        "direct": _Algorithm(_plan.direct_reduce, ("reduce-scatter", "gather")),
    },
    "gather": {"direct": _Algorithm(_plan.gather)},
    "scatter": {"direct": _Algorithm(_plan.scatter)},
    "all_to_all": {"direct": _Algorithm(_plan.all_to_all)},
    "barrier": {"dissemination": _Algorithm(_plan.barrier)},
}


def all_reduce(algorithm: str = "ring", *, world_size: int) -> Plans:
    """Every rank ends with the sum of all ranks' buffers.

    Args:
        algorithm: ``"ring"``: reduce-scatter, then all-gather around the ring, 2(n-1) steps
            (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
            workstations, JPDC 69(2), 2009). ``"direct"``: the same two halves as one exchange
            each, 2 steps. ``"one_shot"``: everyone sends the whole buffer to everyone, 1 step.
        world_size: number of ranks, from 1.

    Raises:
        ValueError: an unknown algorithm or a world size out of range.
    """
    return _generate("all_reduce", algorithm, world_size)


def reduce_scatter(algorithm: str = "ring", *, world_size: int) -> Plans:
    """Rank r ends with the sum of all ranks' chunk r.

    Args:
        algorithm: ``"ring"``, n-1 steps, or ``"direct"``, 1 step.
        world_size: number of ranks, from 1.

    Raises:
        ValueError: an unknown algorithm or a world size out of range.
    """
    return _generate("reduce_scatter", algorithm, world_size)


def all_gather(algorithm: str = "ring", *, world_size: int) -> Plans:
    """Every rank ends with every rank r's chunk r.

    Args:
        algorithm: ``"ring"``, n-1 steps, or ``"direct"``, 1 step.
        world_size: number of ranks, from 1.

    Raises:
        ValueError: an unknown algorithm or a world size out of range.
    """
    return _generate("all_gather", algorithm, world_size)


def broadcast(algorithm: str = "chain", *, world_size: int, root: int = 0) -> Plans:
    """Every rank ends with the root's buffer.

    Args:
        algorithm: ``"chain"``: from rank to next rank, which executors pipeline slice by slice
            (Patarasuk, Faraj and Yuan, Pipelined broadcast on Ethernet switched clusters, IPDPS
            2006). ``"direct"``: the root sends to everyone, 1 step.
        world_size: number of ranks, from 1.
        root: the rank to start from.

    Raises:
        ValueError: an unknown algorithm, or a world size or root out of range.
    """
    return _generate("broadcast", algorithm, world_size, root)


def reduce(algorithm: str = "chain", *, world_size: int, root: int = 0) -> Plans:
    """The root ends with the sum of all ranks' buffers.

    Args:
        algorithm: ``"chain"``: from rank to next rank up to the root, which executors pipeline
            slice by slice. ``"direct"``: a direct reduce-scatter, then a gather (Rabenseifner,
            Optimization of collective reduction operations, ICCS 2004), 2 steps.
        world_size: number of ranks, from 1.
        root: the rank to end at.

    Raises:
        ValueError: an unknown algorithm, or a world size or root out of range.
    """
    return _generate("reduce", algorithm, world_size, root)


def gather(algorithm: str = "direct", *, world_size: int, root: int = 0) -> Plans:
    """The root ends with every rank r's chunk r, in 1 step.

    Raises:
        ValueError: an algorithm other than ``"direct"``, or a world size or root out of range.
    """
    return _generate("gather", algorithm, world_size, root)


def scatter(algorithm: str = "direct", *, world_size: int, root: int = 0) -> Plans:
    """Rank r ends with the root's chunk r, in 1 step.

    Raises:
        ValueError: an algorithm other than ``"direct"``, or a world size or root out of range.
    """
    return _generate("scatter", algorithm, world_size, root)


def all_to_all(algorithm: str = "direct", *, world_size: int) -> Plans:
    """Rank j ends with chunk i*n + j of every rank i, in 1 step.

    Raises:
        ValueError: an algorithm other than ``"direct"``, or a world size outside of 1 ... 46340.
    """
    return _generate("all_to_all", algorithm, world_size)


def barrier(algorithm: str = "dissemination", *, world_size: int) -> Plans:
    """No rank leaves before all have arrived: ceil(log2 n) steps that carry no data.

    Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, IJPP 17(1), 1988.

    Raises:
        ValueError: an algorithm other than ``"dissemination"``, or a world size out of range.
    """
    return _generate("barrier", algorithm, world_size)


def _generate(collective: str, algorithm: str, world_size: int, root: int = 0) -> Plans:
    algorithms = _ALGORITHMS[collective]
    if algorithm not in algorithms:
        raise ValueError(
            f"algorithm of {collective} must be {one_of(algorithms)}, got {algorithm!r}"
        )
    world_size = integer("world_size", world_size, 1, MAX_WORLD_SIZE)
    root = integer("root", root, 0, world_size - 1)
    chosen = algorithms[algorithm]
    of_root = (root,) if collective in ROOTED else ()
    plans = [chosen.generate(rank, world_size, *of_root) for rank in range(world_size)]
    steps_per_phase = len(plans[0].steps) // max(1, len(chosen.phases))
    return Plans(
        collective,
        plans,
        root=root,
        algorithm=algorithm,
        phases=[(phase, steps_per_phase) for phase in chosen.phases],
    )
