"""DTensor and tensor parallelism on ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from alike import also_on_hosts, assert_alike
from ranks import Rank, on_processes
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

PLACEMENTS = [Replicate(), Shard(0), Shard(1)]


def redistributed(rank: Rank, shape: tuple[int, ...]) -> None:
    mesh = init_device_mesh("cpu", (rank.world_size,))
    torch.manual_seed(0)
    tensor = torch.randn(shape, dtype=torch.float64)
    for before in PLACEMENTS:
        for after in PLACEMENTS:
            moved = distribute_tensor(tensor, mesh, [before]).redistribute(mesh, [after])
            assert moved.placements == (after,)
            assert_alike(moved.full_tensor(), tensor, tolerance=0)


@pytest.mark.parametrize("shape", [(8, 8), (7, 5), (2, 9), (1, 1), (0, 3)], ids=str)
def test_redistribute(shape: tuple[int, ...]) -> None:
    on_processes(redistributed, 4, shape, backend="ring")


def from_partial(rank: Rank, op: str, expected: float) -> None:
    mesh = init_device_mesh("cpu", (rank.world_size,))
    local = torch.full((6, 3), float(rank.rank + 1))
    partial = DTensor.from_local(local, mesh, [Partial(op)])
    placements: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    for after in placements:
        assert_alike(
            partial.redistribute(mesh, [after]).full_tensor(), torch.full((6, 3), expected)
        )


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 6.0), ("avg", 2.0), ("max", 3.0), ("min", 1.0), ("product", 6.0)]
)
def test_partial(op: str, expected: float) -> None:
    on_processes(from_partial, 3, op, expected, backend="ring")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(10)
        self.up = nn.Linear(10, 24)
        self.down = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 10)
        self.one, self.two = Block(), Block()
        self.head = nn.Linear(10, 12, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(self.embedding(tokens))))


def make_blocks() -> Blocks:
    torch.manual_seed(5)
    return Blocks().double()


def column_and_row(model: Blocks, mesh: DeviceMesh) -> None:
    plan: dict[str, Any] = {"embedding": RowwiseParallel(input_layouts=Replicate())}
    for block in ("one", "two"):
        plan[f"{block}.up"] = ColwiseParallel()
        plan[f"{block}.down"] = RowwiseParallel()
    plan["head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, plan)


def sequence(model: Blocks, mesh: DeviceMesh) -> None:
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    }
    for block in ("one", "two"):
        plan[f"{block}.norm"] = SequenceParallel()
        plan[f"{block}.up"] = ColwiseParallel(input_layouts=Shard(1))
        plan[f"{block}.down"] = RowwiseParallel(output_layouts=Shard(1))
    plan["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(model, mesh, plan)


def tokens_and_targets(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(12, (3, 8), generator=generator) for _ in range(2))


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def output_and_gradients(model: nn.Module, seed: int = 0) -> list[torch.Tensor]:
    tokens, targets = tokens_and_targets(seed)
    output = model(tokens)
    cross_entropy(output, targets).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [
        tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for tensor in [output.detach(), *gradients]
    ]


def parallel(rank: Rank, parallelize: Callable[..., None]) -> list[torch.Tensor]:
    model = make_blocks()
    parallelize(model, init_device_mesh("cpu", (rank.world_size,)))
    return output_and_gradients(model)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("parallelize", [column_and_row, sequence])
def test_tensor_parallel(parallelize: Callable[..., None], world_size: int) -> None:
    expected = output_and_gradients(make_blocks())
    for found in on_processes(parallel, world_size, parallelize, backend="ring"):
        assert_alike(found, expected)


def with_loss_parallel(rank: Rank) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (rank.world_size,))
    model = make_blocks()
    layout = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"head": layout})
    tokens, targets = tokens_and_targets()
    with loss_parallel():
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
    return [loss.full_tensor().detach(), model.head.weight.grad.full_tensor()]


@also_on_hosts(1)
def test_loss_parallel() -> None:
    model = make_blocks()
    tokens, targets = tokens_and_targets()
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    for found in on_processes(with_loss_parallel, 2, backend="ring"):
        assert_alike(found, [loss.detach(), model.head.weight.grad])


def fsdp_and_tensor_parallel(rank: Rank) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = make_blocks()
    column_and_row(model, mesh["tensor"])
    fully_shard(model.one, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    output_and_gradients(model, seed=mesh.get_local_rank("data"))
    return [parameter.grad.full_tensor() for parameter in model.parameters()]


@also_on_hosts(2, "gloo")
def test_two_dimensions() -> None:
    gradients = []
    for seed in range(2):
        gradients.append(output_and_gradients(make_blocks(), seed)[1:])
    expected = [(first + second) / 2 for first, second in zip(*gradients, strict=True)]
    for found in on_processes(fsdp_and_tensor_parallel, 4, backend="ring"):
        assert_alike(found, expected)


def sums_over_mesh_dimensions(rank: Rank) -> list[float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    sums = []
    for name in ("row", "column"):
        tensor = torch.tensor(float(rank.rank))
        dist.all_reduce(tensor, group=mesh.get_group(name))
        sums.append(tensor.item())
    return sums


def test_device_mesh() -> None:
    sums = on_processes(sums_over_mesh_dimensions, 4, backend="ring")
    assert sums == [[2.0, 1.0], [4.0, 1.0], [2.0, 5.0], [4.0, 5.0]]
