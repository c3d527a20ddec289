"""A program on ring is to give what it gives on gloo, or what one process gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import on_processes
from torch import nn
from torch.utils import _pytree as pytree

CLOSE = 1e-12  # relative; programs here compute in float64


def assert_alike(actual: Any, expected: Any, tolerance: float = CLOSE) -> None:
    """Compares two nests of tensors and plain values; a tolerance of 0 means bit for bit."""
    ours, structure = pytree.tree_flatten(actual)
    theirs, expected_structure = pytree.tree_flatten(expected)
    assert structure == expected_structure
    for our, their in zip(ours, theirs, strict=True):
        if isinstance(our, torch.Tensor):
            torch.testing.assert_close(our, their, rtol=tolerance, atol=tolerance)
        else:
            assert our == their


def also_on_hosts(ranks_per_host: int, links: str = "auto") -> pytest.MarkDecorator:
    """Runs a test a second time, with so many ranks on each host, and links by that engine."""
    name = f"{ranks_per_host} per host, {links}"
    played = [None, (ranks_per_host, links)]
    return pytest.mark.parametrize("hosts", played, ids=["", name], indirect=True)


def same_as_gloo(program: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """Runs the program on both; returns what every rank returned on ring.

    Two addends have one sum, whichever rank adds them. So with two ranks the results agree in every
    bit.
    """
    ring = on_processes(program, world_size, *arguments, backend="ring")
    gloo = on_processes(program, world_size, *arguments, backend="gloo")
    assert_alike(ring, gloo, 0 if world_size == 2 else CLOSE)
    return ring


class Network(nn.Module):
    """A small network with parameters of uneven sizes, a shared one and a scalar."""

    def __init__(self, width: int = 10, out: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(width, 17)
        self.inner = nn.Linear(17, 17, bias=False)
        self.last = nn.Linear(17, out)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.inner(self.inner(x)))
        return self.last(x) * self.scale


def make_network(dtype: torch.dtype = torch.float64) -> Network:
    torch.manual_seed(0)
    return Network().to(dtype)


def batch(rank: int, step: int, width: int = 10) -> torch.Tensor:
    """The batch of one rank in one step, (5, width) float64."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(5, width, generator=generator, dtype=torch.float64)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def parameters_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def trained_in_one_process(
    world_size: int,
    steps: int,
    forward: Callable[[nn.Module, int, int], torch.Tensor | None],
    model: nn.Module | None = None,
    lr: float = 0.1,
) -> list[torch.Tensor]:
    """The parameters after SGD on the average of all ranks' losses.

    Args:
        forward: (model, rank, step) -> that rank's loss, or None if it has no batch.
    """
    model = model or make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(world_size):
            loss = forward(model, rank, step)
            if loss is not None:
                (loss / world_size).backward()
        optimizer.step()
    return parameters_of(model)
