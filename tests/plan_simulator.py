"""Carries plans out on numpy arrays, one transfer at a time, in a random order.

It shares no code with ringcomm's own proof of plans: it moves numbers, not sets of ranks.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ringcomm.plan import Plan, Transfer


class StuckError(Exception):
    """No transfer is possible and some rank is not through."""


@dataclass
class _Rank:
    plan: Plan
    data: np.ndarray
    step: int = -1
    sends: list[Transfer] = field(default_factory=list)
    recvs: list[Transfer] = field(default_factory=list)
    before: np.ndarray = field(default_factory=lambda: np.empty(0))
    known: set[int] = field(default_factory=set)
    known_before: set[int] = field(default_factory=set)

    def begin_steps(self) -> None:
        """Begins the next step once the current one is done; passes over empty ones."""
        while not self.sends and not self.recvs and self.step < len(self.plan.steps):
            self.step += 1
            if self.step == len(self.plan.steps):
                return
            self.sends = list(self.plan.steps[self.step].sends)
            self.recvs = list(self.plan.steps[self.step].recvs)
            self.before = self.data.copy()
            self.known_before = set(self.known)

    def first(self, transfers: list[Transfer]) -> Iterator[Transfer]:
        """The next transfer with each peer: with one peer they keep their order."""
        yield from {transfer.peer: transfer for transfer in reversed(transfers)}.values()


class Simulator:
    """The ranks of a group and what is on its way between them.

    Args:
        plans: one per rank.
        data: for each rank an array of shape (num_chunks, anything), changed in place.
        order: decides which of the possible transfers happens next.
        buffered: whether a send can be done before it is received.
    """

    def __init__(
        self, plans: list[Plan], data: list[np.ndarray], order: random.Random, *, buffered: bool
    ) -> None:
        self.ranks = [
            _Rank(plan, mine, known={rank})
            for rank, (plan, mine) in enumerate(zip(plans, data, strict=True))
        ]
        self.order = order
        self.buffered = buffered
        self.on_the_way: dict[tuple[int, int], deque[tuple[np.ndarray, set[int]]]] = {}

    def run(self) -> None:
        """Raises StuckError for a deadlock and ValueError for a message of the wrong length."""
        for rank in self.ranks:
            rank.begin_steps()
        while moves := list(self._possible()):
            rank, transfer, is_send = self.order.choice(moves)
            if is_send:
                self._send(rank, transfer)
                if not self.buffered:
                    receiver = self.ranks[transfer.peer]
                    self._receive(transfer.peer, next(t for t in receiver.recvs if t.peer == rank))
                    receiver.begin_steps()
            else:
                self._receive(rank, transfer)
            self.ranks[rank].begin_steps()
        if any(rank.step < len(rank.plan.steps) for rank in self.ranks):
            raise StuckError([rank.step for rank in self.ranks])

    def _possible(self) -> Iterator[tuple[int, Transfer, bool]]:
        for number, rank in enumerate(self.ranks):
            for send in rank.first(rank.sends):
                awaited = any(recv.peer == number for recv in self.ranks[send.peer].recvs)
                if self.buffered or awaited:
                    yield number, send, True
            for recv in rank.first(rank.recvs):
                if self.on_the_way.get((recv.peer, number)):
                    yield number, recv, False

    def _send(self, number: int, send: Transfer) -> None:
        rank = self.ranks[number]
        rank.sends.remove(send)
        chunks = slice(send.first_chunk, send.first_chunk + send.num_chunks)
        channel = self.on_the_way.setdefault((number, send.peer), deque())
        channel.append((rank.before[chunks].copy(), rank.known_before))

    def _receive(self, number: int, recv: Transfer) -> None:
        rank = self.ranks[number]
        rank.recvs.remove(recv)
        values, known = self.on_the_way[recv.peer, number].popleft()
        mine = rank.data[recv.first_chunk : recv.first_chunk + recv.num_chunks]
        if mine.shape != values.shape:
            raise ValueError(f"{values.shape} arrive where {mine.shape} are awaited")
        if recv.reduce:
            mine += values
        else:
            mine[:] = values
        rank.known |= known
