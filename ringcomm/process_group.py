"""The ring without torch.distributed's groups, made as its ProcessGroupGloo is."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import Backend, Store, _DistributedBackendOptions
from torch.distributed.distributed_c10d import GroupName, default_pg_timeout

from ringcomm import backend
from ringcomm.groups import bounded
from ringcomm.options import Options


def ProcessGroupRing(  # noqa: N802 (torch's ProcessGroupGloo is a class)
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta = default_pg_timeout,
    *,
    options: Options | None = None,
) -> Backend:
    """One rank of the backend "ring" on its own, for libraries that make backends themselves.

        >>> ring = ringcomm.ProcessGroupRing(dist.PrefixStore("mine", store), rank, size)
        >>> ring.allreduce([tensor]).wait()

    All ranks call it; it returns when all have come.

    Args:
        store: where the ranks find each other; for several groups in one store, a
            `torch.distributed.PrefixStore` for each.
        rank: of this process, from 0 to size - 1.
        size: how many ranks there are.
        timeout: how long an operation, and the ranks' coming together, may take.
        options: the algorithms, and which ranks share a host.

    Returns:
        torch's `Backend`, whose methods (``allreduce``, ``broadcast``, ``send``, ...) take lists of
        tensors and return a Work.

    Raises:
        ValueError: a rank or a size that cannot be.
        torch.distributed.DistBackendError: not all ranks came in time.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank must be between 0 and size - 1, got rank {rank} of size {size}")
    given = _DistributedBackendOptions()
    given.store = store
    given.group_rank = rank
    given.group_size = size
    given.timeout = bounded(timeout)
    given.group_id = GroupName("")
    given.global_ranks_in_group = []
    made: Backend = backend.create(given, options)
    return made
