"""Simulations of algorithms by their names, at any number of ranks."""

from __future__ import annotations

import functools
import math

from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.network import Network
from ringcomm.plan.plans import MAX_PLANNED_RANKS, integer
from ringcomm.plan.registry import PlanGenerator, choose, registered
from ringcomm.plan.simulator import Simulation, Simulator

# Plans that are compared: those of all ranks up to here, of a sample of them in larger groups.
_MOST_COMPARED = 512
_SAMPLE = 64


def simulate(
    collective: str,
    algorithm: str,
    *,
    world_size: int,
    nbytes: float,
    network: Network,
    root: int = 0,
    slice_nbytes: float = math.inf,
) -> Simulation:
    """How long a collective takes on a network, at any scale.

    Every transfer is carried out in a discrete-event simulation: ports that are busy, slices that
    follow each other, ranks that wait. A ring of 16,384 ranks takes half a second, since where all
    ranks do the same, one of them is simulated: ``csrc/plan/simulate.h`` has the model and the
    proof. For this the plans of all ranks are compared in groups of at most 512, and those of 64
    ranks in larger ones.

        >>> network = Network(LINKS["nvlink4"], LINKS["ndr"], ranks_per_host=8)
        >>> simulate("all_reduce", "ring", world_size=16384, nbytes=2**30, network=network)

    `Plans.simulate` does the same for plans at hand, such as plans of your own.

    Args:
        collective: ``"all_reduce"``, ..., as the functions of `ringcomm.plan` are called.
        algorithm: one of theirs. Those for hosts, ``"hierarchical"``, have the network's.
        world_size: number of ranks, from 1 to 262144.
        nbytes: of the whole buffer on one rank, which the chunks of the plan divide equally.
        network: what they run on.
        root: of collectives that have one.
        slice_nbytes: chunks travel in slices of at most so many bytes, one behind the other.

    Raises:
        ValueError: an unknown collective or algorithm, a network that does not fit world_size, a
            number out of range, or more than can be simulated.
    """
    world_size = integer("world_size", world_size, 1, MAX_PLANNED_RANKS)
    generator = registered(collective, algorithm)
    prepared = _prepared(collective, algorithm, world_size, root, network, generator)
    return prepared.run(nbytes, slice_nbytes)


@functools.lru_cache(maxsize=16)  # as many algorithms as a collective may well have
def _prepared(
    collective: str,
    algorithm: str,
    world_size: int,
    root: int,
    network: Network,
    generator: PlanGenerator | None,  # so that one that replaces another is not mistaken for it
) -> Simulator:
    properties = ALGORITHMS.get(collective, {}).get(algorithm)
    ranks_per_host = network.ranks_per_host or world_size
    chosen = choose(
        collective,
        algorithm,
        world_size,
        root,
        ranks_per_host if properties and properties.two_level else None,
    )
    sample = world_size if world_size <= _MOST_COMPARED else _SAMPLE
    compared = [i * (world_size - 1) // max(1, sample - 1) for i in range(sample)]
    return Simulator(world_size, chosen.plan_of, network, compared)
