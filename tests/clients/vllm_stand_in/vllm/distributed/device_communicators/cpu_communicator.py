"""What groups of CPUs call: vLLM's own shared memory, or torch.distributed where it has none."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


class CpuCommunicator:
    def __init__(
        self,
        cpu_group: ProcessGroup,
        device: torch.device,
        device_group: ProcessGroup,
        unique_name: str,
        use_all2all: bool,
    ) -> None:
        self.device_group = device_group
        self.dist_module = dist
        self.ranks = dist.get_process_group_ranks(device_group)
        if self._all_group_ranks_share_shm_group_name():
            raise AssertionError("memory of vLLM's own would be made")

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return True

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self.dist_module.all_reduce(tensor, group=self.device_group)
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in self.ranks]
        gathered = torch.empty(len(parts) * tensor.shape[0], *tensor.shape[1:])
        self.dist_module.all_gather_into_tensor(gathered, tensor, group=self.device_group)
        return torch.cat(gathered.chunk(len(parts)), dim)

    def gather(self, tensor: torch.Tensor, dst: int, dim: int) -> torch.Tensor | None:
        is_root = dist.get_rank() == self.ranks[dst]
        parts = [torch.empty_like(tensor) for _ in self.ranks] if is_root else None
        self.dist_module.gather(tensor, parts, dst=self.ranks[dst], group=self.device_group)
        return torch.cat(parts, dim) if parts else None

    def reduce_scatter(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        moved = tensor.movedim(dim, 0).contiguous()
        part = torch.empty(moved.shape[0] // len(self.ranks), *moved.shape[1:])
        dist.reduce_scatter_tensor(part, moved, group=self.device_group)
        return part.movedim(0, dim).contiguous()
