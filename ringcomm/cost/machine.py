"""What ranks compute on and how they are connected."""

from __future__ import annotations

from dataclasses import dataclass

from ringcomm.plan.network import LINKS, Link


@dataclass(frozen=True)
class Machine:
    """Hosts of equal ranks.

    Args:
        flops: floating-point operations per second of one rank, in the type of the elements.
        memory: bytes of one rank.
        inside: the links inside a host; bandwidth is what one rank sends in one direction.
        across: the links between hosts, likewise for one rank.
        ranks_per_host: how many share a host.
        element_nbytes: of the numbers that are computed with and sent.
    """

    flops: float
    memory: float
    inside: Link
    across: Link
    ranks_per_host: int
    element_nbytes: int = 2


# Data sheets: dense bfloat16 operations without sparsity. What is attained is less, of operations
# and of bandwidths. None of it is measured here.
MACHINES = {
    "h100-nvlink": Machine(989e12, 80e9, LINKS["nvlink4"], LINKS["ndr"], 8),
    "h200-nvlink": Machine(989e12, 141e9, LINKS["nvlink4"], LINKS["ndr"], 8),
    "h100-pcie": Machine(756e12, 80e9, LINKS["pcie5"], LINKS["ndr"], 8),
    "h100-100gbe": Machine(756e12, 80e9, LINKS["100gbe"], LINKS["100gbe"], 1),
}
