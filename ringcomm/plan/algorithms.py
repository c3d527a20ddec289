"""The table of algorithms (csrc/plan/algorithms.h), to choose one of a collective by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ringcomm._C import plan as _plan
from ringcomm._C.plan import Plan
from ringcomm.plan.plans import COLLECTIVES, MAX_PLANNED_RANKS, integer, one_of
from ringcomm.usage import did_you_mean

RanksPerHost = int | Sequence[int]


class Algorithm(NamedTuple):
    """What the table says of an algorithm."""

    about: str  # in a line: n ranks; or H hosts, the largest of L ranks
    two_level: bool  # treats ranks on one host and on several differently
    needs_all_counts: bool  # ranks pass on what neither begins nor ends with them


def _table() -> dict[str, dict[str, Algorithm]]:
    table: dict[str, dict[str, Algorithm]] = {collective: {} for collective in COLLECTIVES}
    for collective, name, about, two_level, needs_all_counts in _plan.algorithms():
        algorithm = Algorithm(about, two_level, needs_all_counts)
        table[collective.name.lower()][name] = algorithm
    return table


# By collective and name; the first of a collective is its default.
ALGORITHMS = _table()


def listing() -> str:
    """The table as text."""
    lines = []
    for collective, algorithms in ALGORITHMS.items():
        lines.append(f"{collective}:")
        lines += [f"    {name:<22} {each.about}" for name, each in algorithms.items()]
    return "\n".join(lines)


# Steps and transfers of all ranks' plans together, which take 1.3 GB and seconds to make.
_MOST_HELD = 1 << 25


class Chosen(NamedTuple):
    """An algorithm with its arguments but the rank."""

    name: str
    plan_of: Callable[[int], Plan]  # of the rank
    phases: tuple[tuple[str, int], ...]  # names with their numbers of steps

    def plans(self, world_size: int) -> list[Plan]:
        """The plans of all ranks.

        Raises:
            ValueError: they are too large to be kept together.
        """
        plans = []
        held = 0
        for rank in range(world_size):
            plan = self.plan_of(rank)
            held += plan.num_steps + plan.num_transfers
            if held > _MOST_HELD:
                raise ValueError(
                    f"the plans of {world_size} ranks have more than {_MOST_HELD} steps and "
                    f"transfers in all, the first {rank + 1} have {held}; fewer ranks or steps "
                    "would do"
                )
            plans.append(plan)
        return plans


def choose(
    collective: str,
    algorithm: str | None,
    world_size: int,
    root: int = 0,
    ranks_per_host: RanksPerHost | None = None,
) -> Chosen:
    """The algorithm by its name; None for the default.

    Raises:
        ValueError: an unknown collective or algorithm, or an argument that is missing, out of range
            or not one of the algorithm's.
    """
    if collective not in ALGORITHMS:
        raise ValueError(f"collective must be {one_of(ALGORITHMS)}, got {collective!r}")
    algorithms = ALGORITHMS[collective]
    if algorithm is None:
        algorithm = next(iter(algorithms))
    if algorithm not in algorithms:
        raise ValueError(
            f"algorithm of {collective} must be {one_of(algorithms)}, got {algorithm!r}"
            + did_you_mean(algorithm, algorithms)
        )
    world_size = integer("world_size", world_size, 1, MAX_PLANNED_RANKS)
    root = integer("root", root, 0, world_size - 1)
    hosts: list[int] = []
    if algorithms[algorithm].two_level:
        if ranks_per_host is None:
            raise ValueError(f"algorithm {algorithm!r} needs ranks_per_host")
        hosts = host_of(ranks_per_host, world_size)
    elif ranks_per_host is not None:
        raise ValueError(f"ranks_per_host={ranks_per_host} has no meaning for {algorithm!r}")
    chosen = (COLLECTIVES[collective], algorithm)
    setting = _plan.Setting(world_size, root, hosts)
    return Chosen(
        algorithm,
        partial(_plan.generate, *chosen, setting=setting),
        tuple(_plan.phases(*chosen, setting)),
    )


def host_of(ranks_per_host: RanksPerHost, world_size: int) -> list[int]:
    """The number of each rank's host: consecutive ranks share one.

    Raises:
        ValueError: the hosts do not have `world_size` ranks.
    """
    if isinstance(ranks_per_host, Sequence):
        sizes = [integer("ranks_per_host", size, 1, world_size) for size in ranks_per_host]
        if sum(sizes) != world_size:
            raise ValueError(
                f"ranks_per_host must add up to world_size, which is {world_size}, got {sizes}"
            )
    else:
        size = integer("ranks_per_host", ranks_per_host, 1, world_size)
        if world_size % size:
            raise ValueError(
                f"ranks_per_host must divide world_size, which is {world_size}, or have a number "
                f"for each host, got {size}"
            )
        sizes = [size] * (world_size // size)
    return [host for host, size in enumerate(sizes) for _ in range(size)]
