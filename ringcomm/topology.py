"""Which ranks of a group are on which host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from ringcomm import _C
from ringcomm.groups import ring_group, unwrapped


@dataclass(frozen=True)
class Host:
    """Ranks of a group that share memory.

    Attributes:
        name: RINGCOMM_HOSTID if it is set, else the name of the host. Hosts may have the same, such
            as virtual machines that are copies of each other.
        ranks: in the default group, in the order of the group's ranks.
    """

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """Where the ranks of a group are.

    Attributes:
        hosts: in the order of their first ranks; each rank of the group is on one.
        own: the number in `hosts` of this rank's.
    """

    hosts: tuple[Host, ...]
    own: int


def topology(group: ProcessGroup | None = None) -> Topology:
    """Says which ranks of a group are on which host, as all ranks found when it was made.

    A host is what shares memory: containers with a /dev/shm and process numbers of their own are
    several, as are the parts of one machine to which RINGCOMM_HOSTID gives different names.

    Args:
        group: the default group if None. If it has another backend, the one of "ring" on it, which
            the first call makes; all members must make that call.

    Returns:
        The same on all ranks, but for `Topology.own`.

    Raises:
        TypeError: `group` is not a process group.
        ValueError: this rank is not in the group, the group is closed, or there is no default
            group.
        RuntimeError: the group has been given no members yet.
    """
    ring = ring_group(group)
    if not isinstance(ring, ProcessGroup):
        raise ValueError("this rank is not in the group; only its members know where they are")
    backend = unwrapped(ring._get_backend(torch.device("cpu")))
    host_of = _C.host_of(backend)
    global_ranks = dist.get_process_group_ranks(ring)
    ranks_on: list[list[int]] = [[] for _ in range(max(host_of) + 1)]
    for rank, host in zip(global_ranks, host_of, strict=True):
        ranks_on[host].append(rank)
    names = _C.host_names(backend)
    hosts = tuple(Host(name, tuple(ranks)) for name, ranks in zip(names, ranks_on, strict=True))
    return Topology(hosts, host_of[ring.rank()])
