"""Sums of ranks' inputs, with their parentheses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_REPR_LENGTH = 200


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sum:
    """What a rank adds up in one step and then rounds.

    Sums are equal if they have the same parentheses. ``str()`` has parentheses around what is added
    in a step of its own; ``repr()`` shows at most 200 characters of that.

        >>> print(Sum((Sum((0, 1)), 2, 3)))
        (rank 0 + rank 1) + rank 2 + rank 3

    Attributes:
        terms: what is added in this step: a rank stands for its input, a `Sum` for the result of
            an earlier step.
    """

    terms: tuple[int | Sum, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sum):
            return NotImplemented
        return self is other or self._preorder() == other._preorder()

    def __hash__(self) -> int:
        return hash(self._preorder())

    def __str__(self) -> str:
        return "".join(self._words())

    def __repr__(self) -> str:
        text = ""
        for word in self._words():
            text += word
            if len(text) > _REPR_LENGTH:
                return f"<Sum {text[:_REPR_LENGTH]}...>"
        return f"<Sum {text}>"

    def _preorder(self) -> tuple[int, ...]:
        """A sum is its number of terms, negated, and then the terms, deeper than a stack may be."""
        numbers: list[int] = []
        left: list[int | Sum] = [self]
        while left:
            term = left.pop()
            if isinstance(term, Sum):
                numbers.append(-len(term.terms))
                left.extend(reversed(term.terms))
            else:
                numbers.append(term)
        return tuple(numbers)

    def _words(self) -> Iterator[str]:
        left: list[int | str | Sum] = [*_joined(self)]
        while left:
            term = left.pop()
            if isinstance(term, Sum):
                left += [")", *_joined(term), "("]
            else:
                yield term if isinstance(term, str) else f"rank {term}"


def _joined(sum_: Sum) -> Iterator[int | str | Sum]:
    """The terms with plus signs between them, the last one first."""
    for at, term in enumerate(reversed(sum_.terms)):
        if at > 0:
            yield " + "
        yield term


def sums_of(table: list[list[int]]) -> list[Sum]:
    """The sums of a table (``SumTable`` in ``csrc/plan/bitwise.h``), equal ones as one object."""
    sums: list[Sum] = []
    for terms in table:
        sums.append(Sum(tuple(term if term >= 0 else sums[~term] for term in terms)))
    return sums
