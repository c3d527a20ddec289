"""Samples of a product of factors in which every possible pair or triple of values appears."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

# Whether a value of one factor can go together with a value of another.
Fits = Callable[[str, Any, str, Any], bool]
Case = dict[str, Any]
Part = frozenset[tuple[str, Hashable]]

_CANDIDATES = 8


def product(factors: Mapping[str, Sequence[Any]], fits: Fits) -> Iterator[Case]:
    """All cases whose values go together."""
    return _filled(list(factors), factors, fits, {})


def covering(
    factors: Mapping[str, Sequence[Any]], fits: Fits, strength: int = 2, seed: int = 0
) -> list[Case]:
    """Cases in which all values of every `strength` factors meet that meet in any case."""
    rng = random.Random(seed)
    missing = [
        part
        for names in itertools.combinations(factors, strength)
        for part in product({name: factors[name] for name in names}, fits)
    ]
    rng.shuffle(missing)
    wanted = {frozenset(part.items()) for part in missing}
    cases = []
    for part in missing:
        if frozenset(part.items()) not in wanted:
            continue
        candidates = [_random_case(factors, fits, part, rng) for _ in range(_CANDIDATES)]
        found = [case for case in candidates if case is not None]
        wanted.discard(frozenset(part.items()))  # also one that no case has
        if found:
            best = max(found, key=lambda case: len(wanted & parts_of(case, strength)))
            wanted -= parts_of(best, strength)
            cases.append(best)
    return cases


def parts_of(case: Case, strength: int = 2) -> set[Part]:
    return {frozenset(part) for part in itertools.combinations(case.items(), strength)}


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
