"""The simulation of plans on a network (csrc/plan/simulate.h says what is simulated)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ringcomm._C import plan as _plan
from ringcomm._C.plan import Plan
from ringcomm.plan.network import Link, Network


@dataclass(frozen=True)
class Simulation:
    """What a simulation has found.

    Args:
        seconds: until the last rank is done.
        num_messages: what all ranks send: transfers times slices.
        ranks_simulated: how many ranks were; where ranks do the same, one stands for all of them.
    """

    seconds: float
    num_messages: int
    ranks_simulated: int


class Simulator:
    """Plans made ready for a network, to be simulated with different numbers of bytes.

    Args:
        world_size: number of ranks.
        plan_of: the plan of a rank.
        network: what they run on.
        compared: the ranks whose plans are compared, to learn which ranks do the same.

    Raises:
        PlanError: sends and receives do not match.
        ValueError: the network does not fit the ranks, or has negative times.
    """

    def __init__(
        self,
        world_size: int,
        plan_of: Callable[[int], Plan],
        network: Network,
        compared: Iterable[int],
    ) -> None:
        ranks_per_host = network.ranks_per_host
        if ranks_per_host is None:
            ranks_per_host = world_size
        nics_per_host = network.nics_per_host
        if nics_per_host is None:
            nics_per_host = ranks_per_host
        across = network.inside if network.across is None else network.across
        self._simulator = _plan.Simulator(
            world_size,
            plan_of,
            _plan.Network(
                ranks_per_host=ranks_per_host,
                nics_per_host=nics_per_host,
                inside=link(network.inside),
                across=link(across),
                reduce_bandwidth=network.reduce_bandwidth,
                egress=network.egress,
                ingress=network.ingress,
            ),
            list(compared),
        )

    def run(self, nbytes: float, slice_nbytes: float = math.inf) -> Simulation:
        """Simulates one collective; the arguments are those of `ringcomm.plan.simulate`."""
        result = self._simulator.run(nbytes, slice_nbytes)
        return Simulation(result.seconds, result.num_messages, result.ranks_simulated)


def link(link: Link) -> _plan.Link:
    """The same for the core."""
    return _plan.Link(latency=link.latency, overhead=link.overhead, bandwidth=link.bandwidth)
