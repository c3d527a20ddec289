"""GradientAverager and average_hook against averages taken by one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ringcomm.parallel import GradientAverager, average_hook

WORLD_SIZE = 3


def make_network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(7, 7) for _ in range(4))).to(dtype)


def loss(network: nn.Module, rank: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + seed)
    x = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    return network(x.to(next(network.parameters()).dtype)).square().mean()


def mean_gradients(rank: Rank, seeds: tuple[int, ...] = (0,)) -> list[torch.Tensor]:
    network = make_network()
    for r in range(rank.world_size):
        for seed in seeds:
            (loss(network, r, seed) / rank.world_size).backward()
    return [parameter.grad for parameter in network.parameters()]


def compare(network: nn.Module, expected: list[torch.Tensor]) -> None:
    for parameter, average in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, average, rtol=1e-12, atol=1e-12)


def averages(rank: Rank) -> None:
    layer = (7 * 7 + 7) * 8  # bytes
    for bucket_nbytes, num_buckets in ((1, 8), (layer, 4), (2 * layer, 2), (1 << 20, 1)):
        network = make_network()
        averager = GradientAverager(network.parameters(), bucket_nbytes=bucket_nbytes)
        assert averager.num_buckets == num_buckets
        for seed in range(3):
            network.zero_grad(set_to_none=seed % 2 == 0)
            assert averager.num_started == 0
            loss(network, rank.rank, seed).backward()
            assert averager.num_started == num_buckets, "they start while backward runs"
            averager.finish()
            compare(network, mean_gradients(rank, (seed,)))


def starts_while_backward_runs(rank: Rank) -> None:
    network = make_network()
    averager = GradientAverager(network.parameters(), bucket_nbytes=1)
    started: list[int] = []
    for layer in network:
        layer.register_full_backward_hook(lambda *_: started.append(averager.num_started))
    network[0].register_full_backward_pre_hook(lambda *_: started.append(averager.num_started))
    x = torch.ones(1, 7, dtype=torch.float64, requires_grad=True)
    network(x).sum().backward()
    averager.finish()
    before_first_layer = started[-2]
    assert before_first_layer == 6, "the later three layers' weights and biases"


def accumulates(rank: Rank) -> None:
    network = make_network()
    averager = GradientAverager(network.parameters(), backwards=2)
    loss(network, rank.rank, 1).backward()
    assert averager.num_started == 0
    loss(network, rank.rank, 2).backward()
    assert averager.num_started == 1
    averager.finish()
    compare(network, mean_gradients(rank, (1, 2)))


def ranks_that_differ(rank: Rank) -> None:
    """Backward reaches the layers in another order, or not at all, depending on the rank."""
    layers = [nn.Linear(3, 3, bias=False).double() for _ in range(4)]
    parameters = [layer.weight for layer in layers]
    averager = GradientAverager(parameters, bucket_nbytes=1)
    own = [[0, 1, 2], [2, 1, 0], [1]][rank.rank]
    x = torch.ones(1, 3, dtype=torch.float64)
    for index in own:
        x = layers[index](x) * 0 + (index + 1) * layers[index].weight.sum()
        (x.sum()).backward()
        x = x.detach()
    averager.finish()
    for index, (parameter, users) in enumerate(zip(parameters, (2, 3, 2, 0), strict=True)):
        expected = torch.full((3, 3), 3.0 * users * (index + 1) / 3, dtype=torch.float64)
        torch.testing.assert_close(parameter.grad, expected)


def in_a_group(rank: Rank) -> None:
    group = dist.new_group([0, 2])
    if rank.rank == 1:
        return
    weight = nn.Parameter(torch.zeros(4))
    averager = GradientAverager([weight], group)
    (weight.sum() * rank.rank).backward()
    averager.finish()
    assert weight.grad.tolist() == [1.0] * 4


def dtypes_and_frozen(rank: Rank) -> None:
    dtypes = [torch.float32, torch.float32, torch.bfloat16, torch.float64]
    parameters = [nn.Parameter(torch.zeros(3, dtype=dtype)) for dtype in dtypes]
    parameters[0].requires_grad_(False)
    averager = GradientAverager(parameters)
    assert averager.num_buckets == 3
    sum(p.double().sum() for p in parameters).mul(rank.rank).backward()
    averager.finish()
    assert parameters[0].grad is None
    assert all(p.grad.tolist() == [1.0] * 3 for p in parameters[1:])


def misuse(rank: Rank) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    for arguments, words in (
        ({"bucket_nbytes": 0}, "bucket_nbytes=0"),
        ({"backwards": 0}, "backwards=0"),
    ):
        with pytest.raises(ValueError, match=words):
            GradientAverager([parameter], **arguments)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        GradientAverager([torch.nn.Parameter(torch.zeros(2), requires_grad=False)])
    averager = GradientAverager([parameter, parameter])
    parameter.sum().backward()
    with pytest.raises(RuntimeError, match="more than 1 times in one step"):
        parameter.sum().backward()
    averager.finish()
    averager.close()
    parameter.sum().backward()
    parameter.sum().backward()
    assert averager.num_started == 0


def hook(rank: Rank) -> None:
    model = DistributedDataParallel(make_network(), bucket_cap_mb=0.0005)
    model.register_comm_hook(None, average_hook)
    for seed in range(3):
        model.zero_grad()
        loss(model, rank.rank, seed).backward()
        compare(model, mean_gradients(rank, (seed,)))


def hook_rounds_once(rank: Rank) -> None:
    """A sum that is rounded to bfloat16 before it is divided has another third."""
    values = [1.0, 1.0, 9 / 256]
    weight = nn.Linear(4, 1, bias=False).to(torch.bfloat16)
    model = DistributedDataParallel(weight)
    model.register_comm_hook(dist.group.WORLD, average_hook)
    model(torch.full((1, 4), values[rank.rank], dtype=torch.bfloat16)).backward()
    expected = torch.tensor(sum(values) / 3).to(torch.bfloat16)
    twice = torch.tensor(sum(values)).to(torch.bfloat16) / 3
    assert expected != twice
    assert torch.equal(weight.weight.grad, expected.expand(1, 4))


def in_turn(rank: Rank, checks: list[Any]) -> None:
    for check in checks:
        check(rank)


def test_three_ranks() -> None:
    checks = [
        averages,
        starts_while_backward_runs,
        accumulates,
        ranks_that_differ,
        in_a_group,
        dtypes_and_frozen,
        misuse,
        hook,
        hook_rounds_once,
    ]
    on_processes(in_turn, WORLD_SIZE, checks, backend="ring")
