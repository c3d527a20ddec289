"""The groups of ranks. Each has a communicator, of the class that the platform names."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist

from vllm.platforms import current_platform


class GroupCoordinator:
    def __init__(self, ranks: list[int], backend: str, name: str) -> None:
        self.device_group = dist.new_group(ranks, backend=backend)
        self.cpu_group = dist.new_group(ranks, backend="gloo")
        module, _, kind = current_platform.get_device_communicator_cls().rpartition(".")
        self.device_communicator = getattr(importlib.import_module(module), kind)(
            cpu_group=self.cpu_group,
            device=torch.device("cpu"),
            device_group=self.device_group,
            unique_name=name,
            use_all2all=False,
        )

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.device_communicator.all_reduce(tensor)

    def all_gather(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return self.device_communicator.all_gather(tensor, dim)

    def gather(self, tensor: torch.Tensor, dst: int, dim: int) -> torch.Tensor | None:
        return self.device_communicator.gather(tensor, dst, dim)

    def reduce_scatter(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return self.device_communicator.reduce_scatter(tensor, dim)


_tp: GroupCoordinator | None = None


def init_distributed_environment(
    world_size: int, rank: int, distributed_init_method: str, local_rank: int, backend: str
) -> None:
    dist.init_process_group(
        backend, init_method=distributed_init_method, world_size=world_size, rank=rank
    )


def ensure_model_parallel_initialized(tensor_parallel: int, pipeline_parallel: int) -> None:
    global _tp
    assert pipeline_parallel == 1
    _tp = GroupCoordinator(list(range(tensor_parallel)), dist.get_backend(), "tp:0")


def get_tp_group() -> Any:
    return _tp
