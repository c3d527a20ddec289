"""Plans: what each rank sends and receives in a collective, as data to print, check and change.

The plans here are the ones that the executors carry out; they come from the same C++ functions.

    >>> import ringcomm
    >>> plans = ringcomm.plan.all_reduce("ring", world_size=4)
    >>> print(plans)  # a table: step, rank, what is sent, what is received
    >>> plans.verify()  # proves that every rank ends with the sum, and that nothing can deadlock
    >>> plans[2].steps[0].sends  # rank 2's sends in its first step

    >>> network = ringcomm.plan.Network(ringcomm.plan.LINKS["nvlink4"])
    >>> plans.simulate(2**20, network).seconds  # how long they take on that network

Plans written by hand, of `Plan`, `Step` and `Transfer`, are checked, printed and simulated in
the same way:
``Plans("all_reduce", [plan_of_rank_0, plan_of_rank_1])``.
"""

from __future__ import annotations

import functools
import math

from ringcomm._algorithms import choose
from ringcomm._C.plan import Plan, PlanError, Step, Transfer
from ringcomm._network import LINKS, Link, Network
from ringcomm._plans import Plans, integer
from ringcomm._simulator import Simulation, Simulator

__all__ = [
    "LINKS",
    "Link",
    "Network",
    "Plan",
    "PlanError",
    "Plans",
    "Simulation",
    "Step",
    "Transfer",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "simulate",
]

# Plans that are compared: those of all ranks up to here, of a sample of them in larger groups.
_MOST_COMPARED = 512
_SAMPLE = 64
_MOST_SIMULATED = 1 << 18  # ranks; a ring of so many takes some ten seconds


def all_reduce(
    algorithm: str = "ring", *, world_size: int, ranks_per_host: int | None = None
) -> Plans:
    """Every rank ends with the sum of all ranks' buffers.

    Args:
        algorithm: ``"ring"``: reduce-scatter, then all-gather around the ring, 2(n-1) steps
            (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
            workstations, JPDC 69(2), 2009). ``"direct"``: the same two halves as one exchange
            each, 2 steps. ``"one_shot"``: everyone sends the whole buffer to everyone, 1 step.
            ``"hierarchical"``: rings inside hosts, then rings across hosts (Mikami et al.,
            Massively distributed SGD, arXiv:1811.05233, 2018), for H hosts of L ranks 2(H+L-2)
            steps.
        world_size: number of ranks, from 1.
        ranks_per_host: of ``"hierarchical"``, a divisor of world_size: that many consecutive ranks
            share a host.

    Raises:
        ValueError: an unknown algorithm, a world size out of range, or no number of ranks per host
            that fits.
    """
    return _generate("all_reduce", algorithm, world_size, ranks_per_host=ranks_per_host)


def reduce_scatter(
    algorithm: str = "ring", *, world_size: int, ranks_per_host: int | None = None
) -> Plans:
    """Rank r ends with the sum of all ranks' chunk r.

    Args:
        algorithm: ``"ring"``, n-1 steps, ``"direct"``, 1 step, or ``"hierarchical"``, for H hosts
            of L ranks H+L-2 steps.
        world_size: number of ranks, from 1.
        ranks_per_host: of ``"hierarchical"``, a divisor of world_size.

    Raises:
        ValueError: an unknown algorithm, a world size out of range, or no number of ranks per host
            that fits.
    """
    return _generate("reduce_scatter", algorithm, world_size, ranks_per_host=ranks_per_host)


def all_gather(
    algorithm: str = "ring", *, world_size: int, ranks_per_host: int | None = None
) -> Plans:
    """Every rank ends with every rank r's chunk r.

    Args:
        algorithm: ``"ring"``, n-1 steps, ``"direct"``, 1 step, or ``"hierarchical"``, for H hosts
            of L ranks H+L-2 steps.
        world_size: number of ranks, from 1.
        ranks_per_host: of ``"hierarchical"``, a divisor of world_size.

    Raises:
        ValueError: an unknown algorithm, a world size out of range, or no number of ranks per host
            that fits.
    """
    return _generate("all_gather", algorithm, world_size, ranks_per_host=ranks_per_host)


def broadcast(algorithm: str = "chain", *, world_size: int, root: int = 0) -> Plans:
    """Every rank ends with the root's buffer.

    Args:
        algorithm: ``"chain"``: from rank to next rank, which executors pipeline slice by slice
            (Patarasuk, Faraj and Yuan, Pipelined broadcast on Ethernet switched clusters, IPDPS
            2006). ``"direct"``: the root sends to everyone, 1 step.
        world_size: number of ranks, from 1.
        root: the rank to start from.

    Raises:
        ValueError: an unknown algorithm, or a world size or root out of range.
    """
    return _generate("broadcast", algorithm, world_size, root)


def reduce(algorithm: str = "chain", *, world_size: int, root: int = 0) -> Plans:
    """The root ends with the sum of all ranks' buffers.

    Args:
        algorithm: ``"chain"``: from rank to next rank up to the root, which executors pipeline
            slice by slice. ``"direct"``: a direct reduce-scatter, then a gather (Rabenseifner,
            Optimization of collective reduction operations, ICCS 2004), 2 steps.
        world_size: number of ranks, from 1.
        root: the rank to end at.

    Raises:
        ValueError: an unknown algorithm, or a world size or root out of range.
    """
    return _generate("reduce", algorithm, world_size, root)


def gather(algorithm: str = "direct", *, world_size: int, root: int = 0) -> Plans:
    """The root ends with every rank r's chunk r, in 1 step.

    Raises:
        ValueError: an algorithm other than ``"direct"``, or a world size or root out of range.
    """
    return _generate("gather", algorithm, world_size, root)


def scatter(algorithm: str = "direct", *, world_size: int, root: int = 0) -> Plans:
    """Rank r ends with the root's chunk r, in 1 step.

    Raises:
        ValueError: an algorithm other than ``"direct"``, or a world size or root out of range.
    """
    return _generate("scatter", algorithm, world_size, root)


def all_to_all(algorithm: str = "direct", *, world_size: int) -> Plans:
    """Rank j ends with chunk i*n + j of every rank i, in 1 step.

    Raises:
        ValueError: an algorithm other than ``"direct"``, or a world size outside of 1 ... 46340.
    """
    return _generate("all_to_all", algorithm, world_size)


def barrier(algorithm: str = "dissemination", *, world_size: int) -> Plans:
    """No rank leaves before all have arrived: ceil(log2 n) steps that carry no data.

    Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, IJPP 17(1), 1988.

    Raises:
        ValueError: an algorithm other than ``"dissemination"``, or a world size out of range.
    """
    return _generate("barrier", algorithm, world_size)


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
        collective: ``"all_reduce"``, ..., as the functions of this module are called.
        algorithm: one of theirs. ``"hierarchical"`` has the network's hosts.
        world_size: number of ranks, from 1 to 262144.
        nbytes: of the whole buffer on one rank, which the chunks of the plan divide equally.
        network: what they run on.
        root: of collectives that have one.
        slice_nbytes: chunks travel in slices of at most so many bytes, one behind the other.

    Raises:
        ValueError: an unknown collective or algorithm, a network that does not fit world_size, a
            number out of range, or more than can be simulated.
    """
    world_size = integer("world_size", world_size, 1, _MOST_SIMULATED)
    prepared = _prepared(collective, algorithm, world_size, root, network)
    return prepared.run(nbytes, slice_nbytes)


@functools.lru_cache(maxsize=8)
def _prepared(
    collective: str, algorithm: str, world_size: int, root: int, network: Network
) -> Simulator:
    ranks_per_host = network.ranks_per_host or world_size
    is_two_level = algorithm == "hierarchical"
    chosen = choose(
        collective, algorithm, world_size, root, ranks_per_host if is_two_level else None
    )
    sample = world_size if world_size <= _MOST_COMPARED else _SAMPLE
    compared = [i * (world_size - 1) // max(1, sample - 1) for i in range(sample)]
    return Simulator(world_size, chosen.plan_of, network, compared)


def _generate(
    collective: str,
    algorithm: str,
    world_size: int,
    root: int = 0,
    ranks_per_host: int | None = None,
) -> Plans:
    chosen = choose(collective, algorithm, world_size, root, ranks_per_host)
    plans = [chosen.plan_of(rank) for rank in range(world_size)]
    return Plans(collective, plans, root=root, algorithm=algorithm, phases=chosen.phases)
