"""torch's data-parallel wrappers on "cuda:ring" train what they train on NCCL."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from gpu_suite import device, groups
from gpus import SECONDS, needs_gpu, require, world_sizes
from ranks import Rank, on_processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ringcomm  # noqa: F401 registers "ring"

pytestmark = [needs_gpu, pytest.mark.slow]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def train(model: nn.Module, rank: int, device: torch.device) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        batch = torch.randn(16, 64, generator=generator).to(device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def trained(rank: Rank, backend: str, wrapper: str) -> list[torch.Tensor]:
    own = device.own(rank.rank)
    dist.init_process_group(
        device.BACKENDS[backend],
        store=rank.store,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=groups.TIMEOUT,
    )
    model = copy.deepcopy(network()).to(own)
    if wrapper == "ddp":
        train(DistributedDataParallel(model), rank.rank, own)
        result = [parameter.detach().cpu() for parameter in model.parameters()]
    else:
        fully_shard(model, mesh=init_device_mesh(device.TYPE, (rank.world_size,)))
        train(model, rank.rank, own)
        result = [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]
    dist.destroy_process_group()
    return result


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
@world_sizes(2)
def test_trains_as_nccl_does(world_size: int, wrapper: str) -> None:
    require(world_size)
    ours = on_processes(trained, world_size, "ring", wrapper, timeout=SECONDS)
    theirs = on_processes(trained, world_size, "nccl", wrapper, timeout=SECONDS)
    for a, b in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(a, b)
