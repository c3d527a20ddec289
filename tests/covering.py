"""Samples of a product of factors in which every possible pair of values appears."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

# Whether a value of one factor can go together with a value of another.
Fits = Callable[[str, Any, str, Any], bool]
Case = dict[str, Any]
Pair = frozenset[tuple[str, Hashable]]

_CANDIDATES = 8


def product(factors: Mapping[str, Sequence[Any]], fits: Fits) -> Iterator[Case]:
    """All cases whose values go together."""
    return _filled(list(factors), factors, fits, {})


def pairwise(factors: Mapping[str, Sequence[Any]], fits: Fits, seed: int = 0) -> list[Case]:
    """Cases in which every pair of values appears that any case has."""
    rng = random.Random(seed)
    missing = [
        {first: x, second: y}
        for first, second in itertools.combinations(factors, 2)
        for x, y in itertools.product(factors[first], factors[second])
        if fits(first, x, second, y)
    ]
    rng.shuffle(missing)
    wanted = {frozenset(pair.items()) for pair in missing}
    cases = []
    for pair in missing:
        if frozenset(pair.items()) not in wanted:
            continue
        candidates = [_random_case(factors, fits, pair, rng) for _ in range(_CANDIDATES)]
        found = [case for case in candidates if case is not None]
        wanted.discard(frozenset(pair.items()))  # also one that no case has
        if found:
            best = max(found, key=lambda case: len(wanted & pairs_of(case)))
            wanted -= pairs_of(best)
            cases.append(best)
    return cases


def pairs_of(case: Case) -> set[Pair]:
    return {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}


def _random_case(
    factors: Mapping[str, Sequence[Any]], fits: Fits, fixed: Case, rng: random.Random
) -> Case | None:
    names = [name for name in factors if name not in fixed]
    rng.shuffle(names)
    shuffled = {name: rng.sample(list(factors[name]), len(factors[name])) for name in names}
    case = next(_filled(names, shuffled, fits, fixed), None)
    return case and {name: case[name] for name in factors}


def _filled(
    names: Sequence[str], factors: Mapping[str, Sequence[Any]], fits: Fits, case: Case
) -> Iterator[Case]:
    if not names:
        yield case
        return
    name, *rest = names
    for value in factors[name]:
        if all(fits(other, chosen, name, value) for other, chosen in case.items()):
            yield from _filled(rest, factors, fits, {**case, name: value})
