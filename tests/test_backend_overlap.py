"""Inputs that lie where outputs do, in any way, give what they would if they lay elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from values import assert_same_bits

EAGER, LARGE = 60, 40_000  # elements of float32 for each rank
ROUNDS = 12

# Calls a collective with (inputs, outputs), of which the root's matter where there is one.
Tensors = list[torch.Tensor]
Call = Callable[[Tensors, Tensors], None]


def all_gather(inputs: Tensors, outputs: Tensors) -> None:
    dist.all_gather(outputs, inputs[0])


def all_gather_into_tensor(inputs: Tensors, outputs: Tensors) -> None:
    dist.all_gather_into_tensor(outputs[0], inputs[0])


def reduce_scatter(inputs: Tensors, outputs: Tensors) -> None:
    dist.reduce_scatter(outputs[0], inputs)


def reduce_scatter_tensor(inputs: Tensors, outputs: Tensors) -> None:
    dist.reduce_scatter_tensor(outputs[0], inputs[0])


def gather(inputs: Tensors, outputs: Tensors) -> None:
    dist.gather(inputs[0], outputs if dist.get_rank() == 1 else None, dst=1)


def scatter(inputs: Tensors, outputs: Tensors) -> None:
    dist.scatter(outputs[0], inputs if dist.get_rank() == 1 else None, src=1)


def all_to_all(inputs: Tensors, outputs: Tensors) -> None:
    dist.all_to_all(outputs, inputs)


def all_to_all_single(inputs: Tensors, outputs: Tensors) -> None:
    dist.all_to_all_single(outputs[0], inputs[0])


def all_gather_coalesced(inputs: Tensors, outputs: Tensors) -> None:
    with dist._coalescing_manager():
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)


def reduce_scatter_coalesced(inputs: Tensors, outputs: Tensors) -> None:
    with dist._coalescing_manager():
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, tensor)


# How many inputs and outputs each has on n ranks, and how many times `count` elements in one.
CALLS: dict[Call, Callable[[int], tuple[int, int, int, int]]] = {
    all_gather: lambda n: (1, 1, n, 1),
    all_gather_into_tensor: lambda n: (1, 1, 1, n),
    reduce_scatter: lambda n: (n, 1, 1, 1),
    reduce_scatter_tensor: lambda n: (1, n, 1, 1),
    gather: lambda n: (1, 1, n, 1),
    scatter: lambda n: (n, 1, 1, 1),
    all_to_all: lambda n: (n, 1, n, 1),
    all_to_all_single: lambda n: (1, n, 1, n),
    all_gather_coalesced: lambda n: (2, 1, 2, n),
    reduce_scatter_coalesced: lambda n: (2, n, 2, 1),
}


def offsets_of_outputs(chance: random.Random, number: int, count: int) -> list[int]:
    """Apart from each other, in any order, often without gaps."""
    offsets, at = [], 0
    for _ in range(number):
        at += chance.choice([0, 0, 1, count // 3])
        offsets.append(at)
        at += count
    chance.shuffle(offsets)
    return offsets


def check_views(rank: Rank, call: Call, count: int) -> None:
    inputs, input_share, outputs, output_share = CALLS[call](rank.world_size)
    input_count, output_count = input_share * count, output_share * count
    for seed in range(ROUNDS):
        chance = random.Random(1000 * seed + rank.rank)
        at_output = offsets_of_outputs(chance, outputs, output_count)
        # Exactly on an output or a part of it, next to one, or anywhere.
        near = [offset + i * count for offset in at_output for i in range(output_share)]
        at_input = [
            max(0, chance.choice(near) + chance.choice([0, 0, 0, 1, -1, count // 2, -count // 2]))
            for _ in range(inputs)
        ]
        size = max([x + output_count for x in at_output] + [x + input_count for x in at_input])
        memory = torch.arange(size, dtype=torch.float32) % 1021 + 10_000 * rank.rank
        reads = [memory[x : x + input_count] for x in at_input]
        writes = [memory[x : x + output_count] for x in at_output]

        wanted = [torch.zeros(output_count) for _ in writes]
        call([x.clone() for x in reads], wanted)
        expected = memory.clone()
        is_written = call is not gather or rank.rank == 1
        if is_written:
            for x, values in zip(at_output, wanted, strict=True):
                expected[x : x + output_count] = values
        call(reads, writes)
        assert_same_bits(memory, expected, f"{call.__name__}, round {seed}")


@pytest.mark.parametrize("count", [EAGER, LARGE])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_overlapping_views_of_one_buffer(call: Call, count: int) -> None:
    on_processes(check_views, 3, call, count, backend="ring")


def check_shared_outputs(rank: Rank) -> None:
    n, count = rank.world_size, 6
    memory = torch.arange(float(4 * n * count))
    before = memory.clone()
    source = torch.ones(count)
    shifted = [memory[i * (count - 1) : i * (count - 1) + count] for i in range(n)]
    same = [memory[:count]] * n
    interleaved = [memory.as_strided((count,), (n - 1,), i) for i in range(n)]
    folded = memory.as_strided((3, count), (2, 1))
    for outputs in (shifted, same, interleaved):
        with pytest.raises(ValueError, match="all_gather: output tensors share memory"):
            dist.all_gather(outputs, source)
        with pytest.raises(ValueError, match="all_to_all: output tensors share memory"):
            dist.all_to_all(outputs, [source] * n)
    with pytest.raises(ValueError, match="all_gather_into_tensor_coalesced: output tensors share"):
        all_gather_coalesced([source, source], [memory[: n * count], memory[1 : n * count + 1]])
    with pytest.raises(ValueError, match="elements of an output tensor share memory"):
        dist.all_reduce(folded)
    assert_same_bits(memory, before)

    columns = list(memory[: n * count].view(count, n).unbind(1))  # interleaved, and apart
    dist.all_gather(columns, source + rank.rank)
    for r, column in enumerate(columns):
        assert_same_bits(column, source + r)


def test_outputs_that_share_elements_are_refused() -> None:
    on_processes(check_shared_outputs, 3, backend="ring")
