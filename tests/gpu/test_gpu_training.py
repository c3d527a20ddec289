"""torch's data-parallel wrappers on "cuda:ring" train what they train on NCCL."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.distributed as dist
from gpus import needs_gpu, shares_gpu
from ranks import Rank, on_processes
from torch import nn
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
    device = torch.device("cuda", rank.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(backend, store=rank.store, rank=rank.rank, world_size=rank.world_size)
    model = copy.deepcopy(network()).to(device)
    if wrapper == "ddp":
        wrapped = DistributedDataParallel(model, device_ids=[device.index])
        train(wrapped, rank.rank, device)
        result = [parameter.detach().cpu() for parameter in model.parameters()]
    else:
        fully_shard(model)
        train(model, rank.rank, device)
        result = [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]
    dist.destroy_process_group()
    return result


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_trains_as_nccl_does(wrapper: str) -> None:
    if torch.cuda.device_count() < 2 and not shares_gpu():
        pytest.skip("needs 2 GPUs, or NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1")
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    ours = on_processes(trained, 2, "cpu:gloo,cuda:ring", wrapper, timeout=240)
    theirs = on_processes(trained, 2, "cpu:gloo,cuda:nccl", wrapper, timeout=240)
    for a, b in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(a, b)
