"""torchft on the backend "ring": `ProcessGroupRing`, for torchft's Manager.

    >>> import ringcomm.torchft, torchft
    >>> manager = torchft.Manager(pg=ringcomm.torchft.ProcessGroupRing(), ...)

torchft gives it other members whenever its replicas die or come. It needs the package torchft.
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import Store, _DistributedBackendOptions
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName
from torchft.process_group import ProcessGroupWrapper

import ringcomm


class ProcessGroupRing(ProcessGroupWrapper):
    """A torchft process group of the backend "ring", on CPU and CUDA.

    Args:
        timeout: of operations, and of the ranks' coming together.
    """

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        options = _DistributedBackendOptions()
        options.store = store
        options.group_rank = rank
        options.group_size = world_size
        options.timeout = self._timeout
        options.group_id = GroupName(f"torchft quorum {self._quorum_id}")
        options.global_ranks_in_group = list(self._global_ranks or [])
        backend = ringcomm.backend.create(options, None)
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        for device in ("cpu", "cuda"):
            group._register_backend(torch.device(device), ProcessGroup.BackendType.CUSTOM, backend)
        return group

    def getBackendName(self) -> str:  # noqa: N802 (torch's)
        return "torchft-ring"
