"""DDP's communication hooks on ring."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from alike import (
    also_on_hosts,
    assert_alike,
    batch,
    loss_of,
    make_network,
    parameters_of,
    same_as_gloo,
    trained_in_one_process,
)
from ranks import Rank, on_processes
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def wide_network() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 48), nn.Linear(48, 3)
    return nn.Sequential(*layers).double()


def train(rank: Rank, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = batch(rank.rank, step).to(next(model.parameters()).dtype)
        loss_of(model(inputs)).backward()
        optimizer.step()


def trained_with_hook(rank: Rank, hook: str) -> list[torch.Tensor]:
    model = DistributedDataParallel(make_network(torch.float32), bucket_cap_mb=0.001)
    hooks = {
        "allreduce": (default_hooks.allreduce_hook, None),
        "fp16": (default_hooks.fp16_compress_hook, None),
        "bf16": (default_hooks.bf16_compress_hook, None),
        "wrapped": (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), None),
        "noop": (debugging_hooks.noop_hook, None),
        "quantized": (quantization_hooks.quantization_perchannel_hook, dist.group.WORLD),
    }
    if hook.startswith("builtin"):
        model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook.split()[1]))
    else:
        function, state = hooks[hook]
        model.register_comm_hook(state, function)
    train(rank, model, torch.optim.SGD(model.parameters(), lr=0.1))
    return parameters_of(model)


@pytest.mark.parametrize(
    "hook", ["allreduce", "fp16", "wrapped", "noop", "builtin ALLREDUCE", "builtin FP16_COMPRESS"]
)
def test_hook_is_the_same_as_on_gloo(hook: str) -> None:
    same_as_gloo(trained_with_hook, 2, hook)


@pytest.mark.skipif(
    torch.version.cuda is None, reason="torch builds without CUDA refuse the bfloat16 hook"
)
def test_bf16_compression_stays_near_full_precision() -> None:
    compressed = on_processes(trained_with_hook, 2, "bf16", backend="ring")
    exact = on_processes(trained_with_hook, 2, "allreduce", backend="ring")
    assert_alike(compressed, exact, tolerance=2e-2)
    assert_alike(compressed[0], compressed[1], tolerance=0)


def two_rows_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return loss_of(model(batch(rank, step)[:2]))


def trained_with_power_sgd(rank: Rank) -> list[torch.Tensor]:
    model = DistributedDataParallel(wide_network(), bucket_cap_mb=0.005)
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=4,
        start_powerSGD_iter=2,
        min_compression_rate=1,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        two_rows_loss(model, rank.rank, step).backward()
        optimizer.step()
    assert len(state.p_memory_dict) > 1, "the test wants several buckets"
    return parameters_of(model)


@also_on_hosts(1, "gloo")
def test_power_sgd_whose_callbacks_wait_for_further_collectives() -> None:
    """Two ranks' gradients of two rows have rank 4, so nothing is lost by an approximation of 4."""
    expected = trained_in_one_process(2, STEPS, two_rows_loss, wide_network())
    first, second = on_processes(trained_with_power_sgd, 2, backend="ring")
    assert_alike(first, expected, tolerance=1e-6)
    assert_alike(first, second, tolerance=0)


def trained_with_local_sgd(rank: Rank) -> list[torch.Tensor]:
    model = DistributedDataParallel(make_network())
    alone, _ = dist.new_subgroups(group_size=1)
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        PeriodicModelAverager(period=2, warmup_steps=2),
    )
    train(rank, model, optimizer)
    return parameters_of(model)


def test_post_local_sgd() -> None:
    same_as_gloo(trained_with_local_sgd, 2)


def plain_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return loss_of(model(batch(rank, step)))


def halved_by_callbacks(rank: Rank) -> list[torch.Tensor]:
    """Of several buckets, each one's callback calls the next collective."""

    def hook(_, bucket):  # DDP accepts annotations only if they are no strings
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        def halve(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            tensor = done.value()[0] / (2 * rank.world_size)
            other = tensor.clone()
            dist.all_reduce(other, op=dist.ReduceOp.MAX)
            return tensor + other

        return future.then(halve)

    model = DistributedDataParallel(make_network(), bucket_cap_mb=0.001)
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(rank, model, optimizer)
    return parameters_of(model)


def test_callback_waits_for_a_collective() -> None:
    # All ranks hold the same sum, so the maximum of its halves is its half.
    expected = trained_in_one_process(2, STEPS, plain_loss)
    for parameters in on_processes(halved_by_callbacks, 2, backend="ring"):
        assert_alike(parameters, expected)
