"""Algorithms of your own, by a name, beside those that come with ringcomm.

An all-reduce for powers of two, along the edges of a hypercube:

    >>> from ringcomm import plan
    >>> def hypercube(rank, world_size):
    ...     peers = [rank ^ 1 << i for i in range(world_size.bit_length() - 1)]
    ...     return plan.Plan(1, [
    ...         plan.Step([plan.Transfer(peer, 0)], [plan.Transfer(peer, 0, reduce=True)])
    ...         for peer in peers
    ...     ])
    >>> plan.register("all_reduce", "hypercube", hypercube)
    >>> plan.all_reduce("hypercube", world_size=8).verify()
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial

from ringcomm._C.plan import Plan
from ringcomm.plan import algorithms
from ringcomm.plan.algorithms import ALGORITHMS, Chosen, RanksPerHost
from ringcomm.plan.plans import (
    COLLECTIVES,
    MAX_PLANNED_RANKS,
    ROOTED,
    Plans,
    all_plans,
    integer,
    one_of,
)

PlanGenerator = Callable[..., Plan | Plans | Sequence[Plan]]

_generators: dict[tuple[str, str], PlanGenerator] = {}


def register(collective: str, name: str, generator: PlanGenerator) -> None:
    """Gives plans of your own a name, by which this module's functions then find them.

    They are ``all_reduce(name, world_size=...)``, ..., `simulate`, and with ``--import`` the
    commands ``explain``, ``simulate`` and ``bench``. Groups that are made afterwards carry the
    plans out if they are named: by `ringcomm.Options`, `ringcomm.new_group(algorithm=name)`,
    `ringcomm.init` or RINGCOMM_ALGORITHM.

    Nothing is generated yet, and nothing verified: `Plans.verify` does that, and so does a group
    when it first needs the plans, which raises `PlanError` on every rank if they are wrong and then
    goes on. All ranks must have registered the same plans. Registering the name again replaces them
    for groups that have not used them yet.

    Args:
        collective: what the plans promise, by the name of a function of `ringcomm.plan`:
            ``"all_reduce"``, ``"barrier"``, ...
        name: of letters, digits, "_", "-" and "."; none of an algorithm that comes with ringcomm,
            whatever its collective, and not ``"auto"``.
        generator: a function of ``(rank, world_size)`` that returns the rank's `Plan`, or of
            ``(world_size)`` that returns the plans of all ranks, a `Plans` or a list of `Plan`. For
            a broadcast, reduce, gather or scatter it takes the root, too, as its last argument. The
            number of parameters without a default says which it is.

    Raises:
        ValueError: an unknown collective, a name that is taken or has other characters, or a
            generator with another number of parameters.
        TypeError: a generator that is no function.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective must be {one_of(COLLECTIVES)}, got {collective!r}")
    taken = {"auto", *(known for names in ALGORITHMS.values() for known in names)}
    if name in taken:
        raise ValueError(f"name must be none of {', '.join(sorted(taken))}, got {name!r}")
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f'name must consist of letters, digits, "_", "-" and ".", got {name!r}')
    _is_per_rank(collective, generator)
    _generators[collective, name] = generator


def registered(collective: str, name: str) -> PlanGenerator | None:
    """The generator that was registered for a collective by this name, or None."""
    return _generators.get((collective, name))


def names(collective: str) -> list[str]:
    """What has been registered for a collective."""
    return [name for of, name in _generators if of == collective]


def choose(
    collective: str,
    algorithm: str | None,
    world_size: int,
    root: int = 0,
    ranks_per_host: RanksPerHost | None = None,
) -> Chosen:
    """A registered algorithm, or else one of ringcomm's, by its name; None for the default.

    Raises:
        ValueError: an unknown collective or algorithm, an argument that is missing, out of range or
            not one of the algorithm's, or a generator that did not return one plan per rank.
    """
    generator = registered(collective, algorithm) if algorithm is not None else None
    if algorithm is None or generator is None:
        return algorithms.choose(collective, algorithm, world_size, root, ranks_per_host)
    world_size = integer("world_size", world_size, 1, MAX_PLANNED_RANKS)
    root = integer("root", root, 0, world_size - 1)
    if ranks_per_host is not None:
        raise ValueError(f"ranks_per_host={ranks_per_host} has no meaning for {algorithm!r}")
    group = (world_size, root) if collective in ROOTED else (world_size,)
    if _is_per_rank(collective, generator):
        return Chosen(algorithm, plan_of=partial(_plan_of, generator, group), phases=())
    plans = generator(*group)
    if isinstance(plans, Plan):
        raise ValueError(f"{algorithm!r} must have {world_size} plans, and there is but one")
    if not isinstance(plans, Sequence):
        raise ValueError(
            f"a generator for all ranks must return a Plans or a list of Plan, got a "
            f"{type(plans).__name__}"
        )
    if len(plans) != world_size:
        raise ValueError(f"{algorithm!r} must have {world_size} plans, and there are {len(plans)}")
    phases = plans.phases if isinstance(plans, Plans) else ()
    return Chosen(algorithm, all_plans(f"what {algorithm!r} returns", plans).__getitem__, phases)


def _plan_of(generator: PlanGenerator, group: tuple[int, ...], rank: int) -> Plan:
    plan = generator(rank, *group)
    if not isinstance(plan, Plan):
        raise ValueError(
            f"a generator for one rank must return its Plan, got a {type(plan).__name__}"
        )
    return plan


def _is_per_rank(collective: str, generator: PlanGenerator) -> bool:
    """Whether it generates the plan of one rank, or those of all.

    Raises:
        ValueError: it is neither, by the number of its parameters.
    """
    needed = [
        parameter
        for parameter in inspect.signature(generator).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    group = ["world_size", "root"] if collective in ROOTED else ["world_size"]
    if len(needed) not in (len(group), len(group) + 1):
        of_all, of_one = ", ".join(group), ", ".join(["rank", *group])
        raise ValueError(
            f"the generator of a {collective} must take ({of_one}) or ({of_all}), got "
            f"{inspect.signature(generator)}"
        )
    return len(needed) > len(group)
