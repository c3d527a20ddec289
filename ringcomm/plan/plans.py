"""The plans of all ranks together."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsIndex, overload

import torch

from ringcomm._C import plan as _plan
from ringcomm._C.plan import Plan, Step
from ringcomm.plan.association import Sum, sums_of
from ringcomm.plan.network import Network
from ringcomm.plan.program import Program
from ringcomm.plan.simulator import Simulation, Simulator
from ringcomm.plan.table import table

COLLECTIVES = {
    "all_reduce": _plan.Collective.ALL_REDUCE,
    "reduce_scatter": _plan.Collective.REDUCE_SCATTER,
    "reduce": _plan.Collective.REDUCE,
    "all_gather": _plan.Collective.ALL_GATHER,
    "gather": _plan.Collective.GATHER,
    "scatter": _plan.Collective.SCATTER,
    "broadcast": _plan.Collective.BROADCAST,
    "all_to_all": _plan.Collective.ALL_TO_ALL,
    "barrier": _plan.Collective.BARRIER,
}
REDUCTIONS = {"all_reduce", "reduce_scatter", "reduce"}
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
MAX_PLANNED_RANKS = 1 << 18  # a ring of so many is simulated in some ten seconds
_REPR_LINES = 100
_MOST_SHOWN = 1 << 19  # steps and transfers of all ranks in a table, which takes seconds


class Plans(Sequence[Plan]):
    """The plans of all ranks for one collective.

    ``plans[r]`` is rank r's `Plan` and ``len(plans)`` the world size; ``print(plans)`` shows every
    step of every rank, ``repr(plans)`` at most the first 100 lines of that.

    Args:
        collective: what the plans promise, by the name of a function of `ringcomm.plan`:
            ``"all_reduce"``, ``"barrier"``, ...
        plans: one `Plan` per rank.
        root: the rank that a broadcast or scatter starts from and a reduce or gather ends at.
        algorithm: a name for the table.
        phases: names of consecutive parts of the plans with their numbers of steps, for the table.

    Raises:
        ValueError: an unknown collective, no plans, something else among them, or a root outside of
            the group.
    """

    def __init__(
        self,
        collective: str,
        plans: Sequence[Plan],
        *,
        root: int = 0,
        algorithm: str = "custom",
        phases: Sequence[tuple[str, int]] = (),
    ) -> None:
        if collective not in COLLECTIVES:
            raise ValueError(f"collective must be {one_of(COLLECTIVES)}, got {collective!r}")
        if not plans:
            raise ValueError("plans must hold one plan per rank, got none")
        plans = all_plans("plans", plans)
        self.collective = collective
        self.algorithm = algorithm
        self.root = integer("root", root, 0, len(plans) - 1)
        self.phases = tuple(phases)
        self._plans = tuple(plans)

    @overload
    def __getitem__(self, rank: SupportsIndex, /) -> Plan: ...
    @overload
    def __getitem__(self, rank: slice, /) -> tuple[Plan, ...]: ...
    def __getitem__(self, rank: SupportsIndex | slice, /) -> Plan | tuple[Plan, ...]:
        return self._plans[rank]

    def __len__(self) -> int:
        return len(self._plans)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plans):
            return NotImplemented
        return (self.collective, self.root, self._plans) == (
            other.collective,
            other.root,
            other._plans,
        )

    __hash__ = None  # type: ignore[assignment]  # plans are compared by value

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self._plans)

    @property
    def num_chunks(self) -> int:
        """The number of chunks that the plans divide the buffer into."""
        return self._plans[0].num_chunks

    @property
    def num_steps(self) -> int:
        """The number of steps of the longest plan."""
        return max(plan.num_steps for plan in self._plans)

    def steps(self) -> Iterator[dict[int, Step]]:
        """Yields, step by step, each rank's `Step`; ranks that are through are left out."""
        steps = [plan.steps for plan in self._plans]
        for index in range(self.num_steps):
            yield {rank: mine[index] for rank, mine in enumerate(steps) if index < len(mine)}

    def verify(self) -> None:
        """Proves that the plans do what their collective promises.

        Every send has its receive, no contribution is lost or counted twice, every rank ends with
        what it was promised, and no order of execution can deadlock, even on a transport where a
        send completes only when it is received.

        Raises:
            PlanError: they do not; the message names rank, step, chunk and what is wrong. Or they
                have more than 2097152 steps, chunks to send, or results (``csrc/plan/verify.h``).
            ValueError: the collective cannot have this number of chunks.
        """
        _plan.verify(COLLECTIVES[self.collective], self._plans, self.root)

    def bitwise_difference(self) -> str:
        """Where ranks end with different bits of a floating-point sum; "" if nowhere.

        A sum depends on its parentheses. Where several ranks compute the sum of a chunk, they must
        put the same ones, or what is to be equal on all ranks drifts apart. What is added in one
        step is rounded once; `csrc/plan/bitwise.h` says what is compared.

            >>> plans.bitwise_difference()
            'rank 0 ends with (rank 0 + rank 1) + rank 2 in chunk 0, and rank 1 with rank 0 + ...'

        Raises:
            PlanError, ValueError: as `verify`.
        """
        self.verify()
        return _plan.bitwise_difference(COLLECTIVES[self.collective], self._plans, self.root)

    def association(self, rank: int | None = None) -> dict[int, Sum]:
        """The sum that each chunk is, with its parentheses, by the chunk's number.

        A `Sum` has what is added in one step, in the order of the ranks; of the first two terms the
        one with the lower rank comes first, since a + b is b + a. Chunks with the same sum have the
        same object.

            >>> print(ringcomm.plan.all_reduce("ring", world_size=3).association()[0])
            (rank 1 + rank 2) + rank 0

        Args:
            rank: what this rank ends with; by default, what the first rank ends with that is
                promised the chunk. If `bitwise_difference` is "", all ranks end with the same.

        Raises:
            PlanError, ValueError: as `verify`; or the rank is none of the group, or the collective
                adds nothing.
        """
        if rank is not None:
            rank = integer("rank", rank, 0, len(self) - 1)
        self.verify()
        table = _plan.sums_of_chunks(COLLECTIVES[self.collective], self._plans, rank, self.root)
        sums = sums_of(table.sums)
        return {chunk: sums[place] for chunk, place in table.of_chunks}

    def association_difference(self, dtype: torch.dtype = torch.float32) -> str:
        """Where a sum is not the canonical one of reproducible groups; "" if nowhere.

        The canonical sum of n ranks adds neighbours, then neighbouring sums, and an odd last one
        goes up as it is: ((0 + 1) + (2 + 3)) + 4. Groups with ``reproducible="ranks"`` add what
        comes together in one step in this way.

            >>> ringcomm.plan.all_reduce("ring", world_size=3).association_difference()
            'rank 0 ends with rank 0 + (rank 1 + rank 2) in chunk 0, and not with (rank 0 + ...'

        Args:
            dtype: of the elements. float32 and float64 are rounded with every addition, floats of
                16 and 8 bits only at the end of a step: for these, one step must add all. Integers
                have the same sum whatever the order.

        Raises:
            PlanError, ValueError: as `verify`.
        """
        self.verify()
        if not (dtype.is_floating_point or dtype.is_complex):
            return ""
        is_wide = dtype.itemsize >= (8 if dtype.is_complex else 4)
        rounding = _plan.Rounding.EVERY_ADDITION if is_wide else _plan.Rounding.EVERY_STEP
        return _plan.association_difference(
            COLLECTIVES[self.collective], self._plans, rounding, self.root
        )

    def program(self, rank: int) -> Program:
        """What `rank` does when the plans are carried out: print it to see how they are fused.

        Args:
            rank: of the group, from 0.

        Raises:
            PlanError: the plans do not fit together, or are too large; `verify` says more.
            ValueError: a rank outside of the group, or a barrier, which moves nothing.
        """
        rank = integer("rank", rank, 0, len(self) - 1)
        if self.collective == "barrier":
            raise ValueError("a barrier has no program: it moves nothing")
        compiled = _plan.compile(COLLECTIVES[self.collective], self._plans, rank, self.root)
        return Program(compiled, f"{self.collective} ({self.algorithm}), rank {rank}")

    def simulate(
        self, nbytes: float, network: Network, *, slice_nbytes: float = math.inf
    ) -> Simulation:
        """How long the plans take on a network, in a discrete-event simulation.

        Args:
            nbytes: of the whole buffer on one rank, which the chunks of the plans divide equally.
            network: what they run on.
            slice_nbytes: chunks travel in slices of at most so many bytes, one behind the other.

        Raises:
            PlanError: sends and receives do not match, or the plans deadlock.
            ValueError: a network that does not fit the plans, a number out of range, or more than
                can be simulated.
        """
        simulator = Simulator(len(self), self.__getitem__, network, range(len(self)))
        return simulator.run(nbytes, slice_nbytes)

    def __str__(self) -> str:
        held = sum(plan.num_steps + plan.num_transfers for plan in self._plans)
        if held > _MOST_SHOWN:
            return (
                f"{self._title()}\n\n{held} steps and transfers, and a table shows {_MOST_SHOWN}; "
                "plans[rank].steps has those of a rank"
            )
        return "\n".join((self._title(), *table(self.steps(), self.phases)))

    def __repr__(self) -> str:
        lines = str(self).splitlines()
        if len(lines) > _REPR_LINES:
            left_out = len(lines) - _REPR_LINES
            lines[_REPR_LINES:] = [f"... and {left_out} more lines; print() shows them"]
        return "\n".join(lines)

    def _title(self) -> str:
        of_root = f" of root {self.root}" if self.collective in ROOTED else ""
        return (
            f"{self.collective} ({self.algorithm}){of_root}: {_count(self.world_size, 'rank')}, "
            f"{_count(self.num_chunks, 'chunk')}, {_count(self.num_steps, 'step')}"
        )


def all_plans(name: str, plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """`plans` as a tuple, or a ValueError that says what else is among them."""
    if not isinstance(plans, Iterable):
        raise ValueError(f"{name} must be a list of Plan, got a {type(plans).__name__}")
    every = tuple(plans)
    for rank, plan in enumerate(every):
        if not isinstance(plan, Plan):
            raise ValueError(f"{name}[{rank}] must be a Plan, got a {type(plan).__name__}")
    return every


def integer(name: str, value: int, least: int, most: int) -> int:
    """`value` as an int, or a ValueError that says what is allowed."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least} and {most}, got {number}")
    return number


def one_of(names: Iterable[str]) -> str:
    """The names as "one of 'a', 'b'" for an error message."""
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
