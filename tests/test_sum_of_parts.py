"""Sums of parts have the same bits among any number of ranks: those of NumPy's sums in pairs."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from test_reproducible import in_pairs
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm.parallel import Microbatches, microbatch_hook

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32)


def part(number: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    values = torch.randn(count, generator=generator, dtype=torch.float64) * 1000
    return values.to(dtype)


def expected(num_parts: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    parts = [part(number, count, dtype) for number in range(num_parts)]
    if not dtype.is_floating_point:
        return torch.stack(parts).sum(0, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.from_numpy(in_pairs([each.to(wide).numpy() for each in parts], "sum")).to(dtype)


def start(rank: Rank) -> None:
    os.environ["RINGCOMM_REPRODUCIBLE"] = "world"
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)


def adds(rank: Rank, num_parts: int) -> list[str]:
    """Which sums are not as expected."""
    start(rank)
    number = num_parts // rank.world_size
    own = range(rank.rank * number, (rank.rank + 1) * number)
    complaints = []
    for dtype in DTYPES:
        for count in (0, 1, 1000, 100_003):
            parts = [part(each, count, dtype) for each in own]
            before = [each.clone() for each in parts]
            total = ringcomm.sum_of_parts(parts)
            buffer = torch.empty(count, dtype=dtype)
            one_by_one = ringcomm.sum_of_parts(buffer.copy_(each) for each in parts)
            for result in (total, one_by_one):
                if not torch.equal(result, expected(num_parts, count, dtype)):
                    complaints.append(f"{dtype}, {count}")
            if any(not torch.equal(a, b) for a, b in zip(parts, before, strict=True)):
                complaints.append(f"{dtype}, {count}: a part was changed")
    dist.destroy_process_group()
    return complaints


@pytest.mark.parametrize(
    ("world_size", "num_parts"),
    [(1, 8), (2, 8), (4, 8), (8, 8), (1, 6), (3, 6), (1, 1), (1, 100), (3, 96)],
)
def test_numbers_of_ranks(world_size: int, num_parts: int) -> None:
    assert on_processes(adds, world_size, num_parts) == [[]] * world_size


def refuses(rank: Rank) -> list[str]:
    start(rank)
    one, two = torch.ones(2), torch.ones(3)
    off = ringcomm.new_group(reproducible="ranks")
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: ringcomm.sum_of_parts([one] * 3),
        lambda: ringcomm.sum_of_parts([one] * (2 << rank.rank)),
        lambda: ringcomm.sum_of_parts([one, two] if rank.rank else [one, one]),
        lambda: ringcomm.sum_of_parts([] if rank.rank else [one, one]),
        lambda: ringcomm.sum_of_parts([one.to_sparse()] if rank.rank else [one]),
        lambda: ringcomm.sum_of_parts([one], group=off),
    ]
    errors = []
    for call in calls:
        try:
            call()
            errors.append("")
        except (TypeError, ValueError, RuntimeError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    assert ringcomm.sum_of_parts([one]).tolist() == [2.0, 2.0]
    dist.destroy_process_group()
    return errors


def test_refusals_are_on_all_ranks() -> None:
    others, wrong = on_processes(refuses, 2)
    for errors in (others, wrong):
        assert "must be a power of two, got 3" in errors[0]
        assert errors[1] == (
            "ValueError: every rank must have as many parts as the others, and they have 2 to 4"
        )
        assert errors[5].startswith("ValueError: sum_of_parts is for groups")
        assert 'this one has "ranks"' in errors[5]
    for number, what in [
        (2, "part 1 is (3,) of torch.float32 on cpu where part 0 is (2,)"),
        (3, "parts must hold at least one tensor, got none"),
        (4, "parts must be dense tensors"),
    ]:
        assert what in wrong[number] and what in others[number]
        assert wrong[number].startswith(("ValueError", "TypeError"))
        assert others[number].startswith("DistBackendError")


# ---- Gradients of micro-batches

NUM_MICROBATCHES = 4


def microbatches(dtype: torch.dtype) -> list[torch.Tensor]:
    return [part(100 + number, 5 * 7, dtype).view(5, 7) / 1000 for number in range(4)]


def gradients(network: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))
        self.nothing = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + (self.nothing * -0.0).sum()  # whose gradient is -0


def network_of(dtype: torch.dtype) -> nn.Module:
    return Network().to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def trains(rank: Rank) -> list[bool]:
    """Whether groups of 1, 2 and 4 ranks have the gradients that sum_of_parts has."""
    torch.set_num_threads(1)
    start(rank)
    results = []
    for size in (1, 2, 4):
        for first in range(0, 4, size):
            made = ringcomm.new_group(list(range(first, first + size)))
            if first <= rank.rank < first + size:
                group = made
        for dtype in (torch.float32, torch.bfloat16):
            alone = []
            for batch in microbatches(dtype):
                network = network_of(dtype)
                network(batch).square().sum().backward()
                alone.append([gradient + 0.0 for gradient in gradients(network)])
            for is_view in (False, True):
                network = DistributedDataParallel(
                    network_of(dtype),
                    process_group=group,
                    bucket_cap_mb=1e-4,
                    gradient_as_bucket_view=is_view,
                )
                number = NUM_MICROBATCHES // size
                state = Microbatches(number, group)
                network.register_comm_hook(state, microbatch_hook)
                own = slice(group.rank() * number, (group.rank() + 1) * number)
                for _ in range(3):  # buckets change after the first step
                    network.zero_grad()
                    for batch in microbatches(dtype)[own]:
                        network(batch).square().sum().backward()
                    for got, *parts in zip(gradients(network), *alone, strict=True):
                        wide = [each.float().numpy() for each in parts]
                        mean = torch.from_numpy(in_pairs(wide, "sum")) / NUM_MICROBATCHES
                        results.append(torch.equal(bits(got), bits(mean.to(dtype))))
    dist.destroy_process_group()
    return results


def test_gradients_of_microbatches() -> None:
    for results in on_processes(trains, 4):
        assert len(results) == 3 * 2 * 2 * 3 * 5 and all(results)


def refuses_hooks(rank: Rank) -> list[str]:
    start(rank)
    off = ringcomm.new_group(reproducible="off")
    errors = []
    for count, group in [(3, None), (0, None), (2, off)]:
        with pytest.raises(ValueError) as raised:
            Microbatches(count, group)
        errors.append(str(raised.value))
    dist.destroy_process_group()
    return errors


def test_hooks_that_are_refused() -> None:
    for three, none, off in on_processes(refuses_hooks, 2):
        assert three == "count must be a power of two, got 3"
        assert none == "count must be a power of two, got 0"
        assert off.startswith("microbatch_hook is for groups") and '"off"' in off
