"""ringcomm.plan.simulate where ranks share what they can send and receive, against another fluid.

The reference advances time from change to change on exact fractions. It raises the rates of all
messages together until something is full, where the core looks for the fullest rank first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringcomm
from ringcomm.plan import Link, Network, Plan, Plans, Step, all_gather, simulate
from ringcomm.plan.algorithms import ALGORITHMS

MESSAGES = ("latency", "overhead", "bandwidth", "egress", "ingress")


@dataclass
class Flow:
    """A message that is leaving."""

    sender: int
    receiver: int
    left: Fraction
    key: tuple[int, int, int]  # rank, slice and step of the sender
    place: int  # among the step's sends


def fair_rates(flows: list[Flow], network: Network) -> list[Fraction]:
    """Raises all rates alike; one stops when its own limit or one of its ranks' is reached."""
    most = network.inside.bandwidth
    limits = {"sender": network.egress, "receiver": network.ingress}
    rates = [Fraction(0)] * len(flows)
    growing = set(range(len(flows)))
    while growing:
        room: list[tuple[Fraction, set[int]]] = []
        if most < inf:
            room.append((Fraction(most) - rates[min(growing)], set(growing)))
        for end, limit in limits.items():
            for rank in {getattr(flows[i], end) for i in growing} if limit < inf else ():
                here = [i for i in range(len(flows)) if getattr(flows[i], end) == rank]
                full = growing.intersection(here)
                left = Fraction(limit) - sum(rates[i] for i in here)
                room.append((left / len(full), full))
        rise = min(part for part, _ in room)
        for i in growing:
            rates[i] += rise
        for part, full in room:
            if part == rise:
                growing -= full
    return rates


@dataclass
class Fluid:
    """All ranks' slices, each with the step it is in."""

    plans: list[Plan]
    slices: list[Fraction]  # bytes of a chunk's
    network: Network
    now: Fraction = Fraction(0)
    flows: list[Flow] = field(default_factory=list)
    timers: list[tuple[Fraction, str, tuple[int, int, int], int]] = field(default_factory=list)
    awaited: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def finish(self) -> Fraction:
        """The time at which the last rank is done."""
        for rank, plan in enumerate(self.plans):
            for number, _ in enumerate(self.slices):
                for step, each in enumerate(plan.steps):
                    self.awaited[rank, number, step] = len(each.recvs) + 1
                self.begin((rank, number, 0))
        while self.flows or self.timers:
            self.advance()
        assert not any(self.awaited.values())
        return self.now

    def begin(self, key: tuple[int, int, int]) -> None:
        if key[2] < len(self.plans[key[0]].steps):
            self.send(key, 0)

    def send(self, key: tuple[int, int, int], place: int) -> None:
        rank, _, step = key
        if place < len(self.plans[rank].steps[step].sends):
            begins = self.now + Fraction(self.network.inside.overhead)
            self.timers.append((begins, "leaves", key, place))
        else:
            self.one_less(key)

    def one_less(self, key: tuple[int, int, int]) -> None:
        self.awaited[key] -= 1
        if self.awaited[key] == 0:
            self.begin((key[0], key[1], key[2] + 1))

    def advance(self) -> None:
        rates = fair_rates(self.flows, self.network)
        ends = [self.now + flow.left / rate for flow, rate in zip(self.flows, rates, strict=True)]
        then = min([*ends, *(timer[0] for timer in self.timers)])
        for flow, rate in zip(self.flows, rates, strict=True):
            flow.left -= rate * (then - self.now)
        self.now = then
        over = [flow for flow in self.flows if flow.left == 0]
        self.flows = [flow for flow in self.flows if flow.left > 0]
        due = [timer for timer in self.timers if timer[0] == then]
        self.timers = [timer for timer in self.timers if timer[0] > then]
        for flow in over:
            arrives = self.now + Fraction(self.network.inside.latency)
            receiver = (flow.receiver, flow.key[1], flow.key[2])  # in the step it is sent in
            self.timers.append((arrives, "arrives", receiver, 0))
            self.send(flow.key, flow.place + 1)
        for _, what, key, place in due:
            if what == "arrives":
                self.one_less(key)
                continue
            sent = self.plans[key[0]].steps[key[2]].sends[place]
            nbytes = self.slices[key[1]] * sent.num_chunks
            self.flows.append(Flow(key[0], sent.peer, nbytes, key, place))


def reference(plans: Iterable[Plan], nbytes: int, network: Network, slice_nbytes: int) -> Fraction:
    """The seconds that the plans take."""
    plans = list(plans)
    chunk = Fraction(nbytes, plans[0].num_chunks)
    slices, left = [], chunk
    while left > 0:
        slices.append(min(left, Fraction(slice_nbytes)))
        left -= slices[-1]
    return Fluid(plans, slices, network).finish()


def in_rank_order(world_size: int) -> Plans:
    """A direct all-gather in which every rank begins with rank 0."""
    plans = all_gather("direct", world_size=world_size)
    return Plans(
        "all_gather",
        [
            Plan(
                plan.num_chunks,
                [
                    Step(sends=sorted(step.sends, key=lambda send: send.peer), recvs=step.recvs)
                    for step in plan.steps
                ],
            )
            for plan in plans
        ],
    )


def test_ranks_that_begin_with_the_same_peer_are_slow():
    """8 ranks, 7 MB each: 7 s one after the other, and 8 * 7 / 2 where all go to rank 0 first."""
    network = Network(Link(), egress=1e6, ingress=1e6)
    rotated = all_gather("direct", world_size=8)
    assert rotated.simulate(8e6, network).seconds == pytest.approx(7)
    assert in_rank_order(8).simulate(8e6, network).seconds == pytest.approx(28)


def test_nothing_changes_without_limits():
    link = Link(3e-6, 4e9, 1e-6)
    for algorithm in ALGORITHMS["all_reduce"]:
        one, other = (
            simulate("all_reduce", algorithm, world_size=8, nbytes=2**20, network=network)
            for network in (Network(link), Network(link, egress=inf, ingress=inf))
        )
        assert one == other


ALGORITHMS_TRIED = [
    (collective, algorithm)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    for algorithm in ALGORITHMS[collective]
    if algorithm != "chain"  # whose messages are received in other steps
]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_agrees_with_a_fluid_of_fractions(data):
    world_size = data.draw(st.integers(2, 6))
    collective, algorithm = data.draw(st.sampled_from([*ALGORITHMS_TRIED, ("all_gather", "")]))
    numbers = {name: data.draw(st.integers(1, 12)) for name in MESSAGES}
    limit = data.draw(st.sampled_from(["egress", "ingress", "both"]))
    network = Network(
        Link(
            numbers["latency"] / 4,
            data.draw(st.sampled_from([inf, numbers["bandwidth"] / 2])),
            numbers["overhead"] / 8 - 1 / 8,
        ),
        egress=inf if limit == "ingress" else numbers["egress"],
        ingress=inf if limit == "egress" else numbers["ingress"],
    )
    nbytes = data.draw(st.integers(1, 200))
    plans = (
        getattr(ringcomm.plan, collective)(algorithm, world_size=world_size)
        if algorithm
        else in_rank_order(world_size)
    )
    chunk = Fraction(nbytes, plans[0].num_chunks)
    slice_nbytes = int(chunk / data.draw(st.integers(1, 4))) + 1
    expected = reference(plans, nbytes, network, slice_nbytes)
    found = plans.simulate(nbytes, network, slice_nbytes=slice_nbytes).seconds
    assert found == pytest.approx(float(expected), rel=1e-9)
