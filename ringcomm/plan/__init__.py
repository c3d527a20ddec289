"""Plans: what each rank sends and receives in a collective, as data to print, check and change.

The plans here are the ones that the executors carry out; they come from the same C++ functions.

    >>> import ringcomm
    >>> plans = ringcomm.plan.all_reduce("ring", world_size=4)
    >>> print(plans)  # a table: step, rank, what is sent, what is received
    >>> plans.verify()  # proves that every rank ends with the sum, and that nothing can deadlock
    >>> plans.bitwise_difference()  # where ranks end with different bits of the sum: nowhere, ""
    >>> plans.association()  # the sum that each chunk is, with its parentheses
    >>> plans.association_difference()  # where that is not the sum of reproducible groups
    >>> plans[2].steps[0].sends  # rank 2's sends in step 0, its first

    >>> network = ringcomm.plan.Network(ringcomm.plan.LINKS["nvlink4"])
    >>> plans.simulate(2**20, network).seconds  # how long they take on that network

Steps count from 0, as ranks, chunks and slices do: here, in tables and pictures, in error messages
and in traces.

Plans written by hand, of `Plan`, `Step` and `Transfer`, are checked, printed and simulated in
the same way:
``Plans("all_reduce", [plan_of_rank_0, plan_of_rank_1])``. `register` gives them a name.

The algorithms, of which ``csrc/plan/`` has a page each, for n ranks, or H hosts of L ranks:
"""

from ringcomm._C.plan import Plan, PlanError, Step, Transfer
from ringcomm.plan.algorithms import listing as _listing
from ringcomm.plan.association import Sum
from ringcomm.plan.at_scale import simulate
from ringcomm.plan.generate import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from ringcomm.plan.network import LINKS, Link, Network
from ringcomm.plan.plans import Plans
from ringcomm.plan.registry import register, registered
from ringcomm.plan.simulator import Simulation

__doc__ += f"\n{_listing()}\n"

__all__ = [
    "LINKS",
    "Link",
    "Network",
    "Plan",
    "PlanError",
    "Plans",
    "Simulation",
    "Step",
    "Sum",
    "Transfer",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "register",
    "registered",
    "scatter",
    "simulate",
]
