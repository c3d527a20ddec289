"""What a collective on a CUDA device costs the host.

Everything on a device is enqueued, so a collective takes at least the time of its calls to CUDA and
NCCL. They are counted, without a device, by the code that makes them. What each costs is estimated,
not measured: a kernel's launch as users report it for H100, the others from reading NCCL 2.28 to
2.32 and adding up what it calls. An all-reduce among 4 ranks:

    >>> from ringcomm.cost import device_calls
    >>> def cell(algorithm, nbytes):
    ...     c = device_calls("all_reduce", algorithm, 4, nbytes)
    ...     return f"{c.groups:5} groups {c.reductions:3} sums {1e6 * c.host_seconds:6.1f} µs"
    >>> for nbytes in (2**10, 2**20, 2**26, 2**30):
    ...     print(f"{nbytes:10}", cell("ring", nbytes), cell("direct", nbytes))
          1024     6 groups   3 sums   67.5 µs     2 groups   1 sums   32.5 µs
       1048576     6 groups   3 sums   67.5 µs     2 groups   1 sums   32.5 µs
      67108864     9 groups   6 sums  110.0 µs     4 groups   3 sums   57.5 µs
    1073741824    51 groups  48 sums  628.0 µs    49 groups  48 sums  620.0 µs
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringcomm._C import streams
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.plans import COLLECTIVES, integer, one_of

DeviceLayout = streams.Layout

_MOST_RANKS = 1024  # whose plans are generated to count the calls of one
_SHARED = {"reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"}


@dataclass(frozen=True)
class DeviceCalls:
    """The calls that one rank makes for one collective.

    Args:
        groups: of sends and receives (``ncclGroupEnd``).
        launches: communicators in each group, summed: NCCL launches a kernel for each.
        sends: ``ncclSend``.
        recvs: ``ncclRecv``.
        reductions: kernels.
        copies: ``cudaMemcpyAsync``.
        records: ``cudaEventRecord``.
        waits: ``cudaStreamWaitEvent``.
        host_seconds: what they are taken to cost, and the call itself, in seconds. Not measured.
    """

    groups: int
    launches: int
    sends: int
    recvs: int
    reductions: int
    copies: int
    records: int
    waits: int
    host_seconds: float


def device_calls(
    collective: str,
    algorithm: str,
    world_size: int,
    nbytes: int,
    *,
    rank: int = 0,
    root: int = 0,
    dtype: torch.dtype = torch.float32,
    layout: DeviceLayout | None = None,
) -> DeviceCalls:
    """Counts the calls of a collective on a CUDA device, and says what they cost the host.

    All-reduce, reduce and broadcast are counted in place, the others from one buffer to another.

    Args:
        collective: by the name of a function of `ringcomm`: ``"all_reduce"``, ...
        algorithm: a name that ``help(ringcomm.plan)`` lists for the collective, or ``"auto"`` for
            what the backend would choose.
        world_size: ranks.
        nbytes: of the largest buffer of a rank: what an all-reduce sums, a reduce-scatter begins
            with, an all-gather ends with.
        rank: whose calls. Only in a collective with a root do they depend on it.
        root: of a collective that has one.
        dtype: of the elements. By it ``"auto"`` chooses, too.
        layout: `ringcomm.Options`' channels and slice_nbytes; None for their defaults.

    Raises:
        ValueError: an unknown collective or algorithm, a rank or root outside of the group, or
            nbytes that is not a whole number of elements for each rank.
    """
    names = [name for name in COLLECTIVES if name != "barrier"]
    if collective not in names:
        raise ValueError(f"collective must be {one_of(names)}, got {collective!r}")
    known = ["auto", *ALGORITHMS[collective]]
    if algorithm not in known:
        raise ValueError(f"algorithm of {collective} must be {one_of(known)}, got {algorithm!r}")
    world_size = integer("world_size", world_size, 1, _MOST_RANKS)
    nbytes = integer("nbytes", nbytes, 0, 2**43)
    unit = dtype.itemsize * (world_size if collective in _SHARED else 1)
    if nbytes % unit != 0:
        raise ValueError(f"nbytes must be a multiple of {unit} for {collective}, got {nbytes}")
    calls = streams.count_calls(
        COLLECTIVES[collective],
        algorithm,
        world_size,
        integer("rank", rank, 0, world_size - 1),
        integer("root", root, 0, world_size - 1),
        nbytes,
        dtype,
        layout or DeviceLayout(),
    )
    return DeviceCalls(
        calls.groups,
        calls.launches,
        calls.sends,
        calls.recvs,
        calls.reductions,
        calls.copies,
        calls.records,
        calls.waits,
        calls.host_seconds,
    )
