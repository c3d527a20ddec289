"""The plans of each collective, by the name of an algorithm.

``help(ringcomm.plan)`` lists the algorithms; the first of a collective is its default. They raise
ValueError for an unknown algorithm, a world size or root out of range, hosts that the ranks do not
fit, and plans too large to be kept together: 2**25 steps and transfers, as of a ring of 2364 ranks.
"""

from __future__ import annotations

from ringcomm.plan.algorithms import RanksPerHost
from ringcomm.plan.plans import Plans
from ringcomm.plan.registry import choose


def all_reduce(
    algorithm: str | None = None, *, world_size: int, ranks_per_host: RanksPerHost | None = None
) -> Plans:
    """Every rank ends with the sum of all ranks' buffers.

    Args:
        algorithm: its name; None for the default.
        world_size: number of ranks, from 1.
        ranks_per_host: of those for hosts, such as ``"hierarchical"``: so many consecutive ranks
            share a host, a number that divides world_size; or one for each host, such as
            ``[3, 2, 2]``.
    """
    return _generate("all_reduce", algorithm, world_size, ranks_per_host=ranks_per_host)


def reduce_scatter(
    algorithm: str | None = None, *, world_size: int, ranks_per_host: RanksPerHost | None = None
) -> Plans:
    """Rank r ends with the sum of all ranks' chunk r; the arguments are `all_reduce`'s."""
    return _generate("reduce_scatter", algorithm, world_size, ranks_per_host=ranks_per_host)


def all_gather(
    algorithm: str | None = None, *, world_size: int, ranks_per_host: RanksPerHost | None = None
) -> Plans:
    """Every rank ends with every rank r's chunk r; the arguments are `all_reduce`'s."""
    return _generate("all_gather", algorithm, world_size, ranks_per_host=ranks_per_host)


def broadcast(algorithm: str | None = None, *, world_size: int, root: int = 0) -> Plans:
    """Every rank ends with the root's buffer.

    Args:
        algorithm: its name; None for the default.
        world_size: number of ranks, from 1.
        root: the rank to start from.
    """
    return _generate("broadcast", algorithm, world_size, root)


def reduce(algorithm: str | None = None, *, world_size: int, root: int = 0) -> Plans:
    """The root ends with the sum of all ranks' buffers; the arguments are `broadcast`'s."""
    return _generate("reduce", algorithm, world_size, root)


def gather(algorithm: str | None = None, *, world_size: int, root: int = 0) -> Plans:
    """The root ends with every rank r's chunk r; the arguments are `broadcast`'s."""
    return _generate("gather", algorithm, world_size, root)


def scatter(algorithm: str | None = None, *, world_size: int, root: int = 0) -> Plans:
    """Rank r ends with the root's chunk r; the arguments are `broadcast`'s."""
    return _generate("scatter", algorithm, world_size, root)


def all_to_all(algorithm: str | None = None, *, world_size: int) -> Plans:
    """Rank j ends with chunk i*n + j of every rank i, of at most 46340 ranks."""
    return _generate("all_to_all", algorithm, world_size)


def barrier(algorithm: str | None = None, *, world_size: int) -> Plans:
    """No rank leaves before all have arrived."""
    return _generate("barrier", algorithm, world_size)


def _generate(
    collective: str,
    algorithm: str | None,
    world_size: int,
    root: int = 0,
    ranks_per_host: RanksPerHost | None = None,
) -> Plans:
    chosen = choose(collective, algorithm, world_size, root, ranks_per_host)
    plans = chosen.plans(world_size)
    return Plans(collective, plans, root=root, algorithm=chosen.name, phases=chosen.phases)
