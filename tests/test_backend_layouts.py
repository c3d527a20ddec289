"""Tensors that do not lie flat, that start anywhere, or that autograd watches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from values import assert_same_bits

ROWS, COLUMNS = 6, 9
Layout = Callable[[torch.dtype], tuple[torch.Tensor, torch.Tensor]]


def holder(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, 77, dtype=dtype)


# Each makes a (ROWS, COLUMNS) view and the memory it lies in, which must not change elsewhere.


def transposed(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    memory = holder(COLUMNS, ROWS, dtype=dtype)
    return memory.t(), memory


def strided(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    memory = holder(2 * ROWS + 1, 3 * COLUMNS, dtype=dtype)
    return memory[1::2, ::3], memory


def inner(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    memory = holder(ROWS + 2, COLUMNS + 2, dtype=dtype)
    return memory[1:-1, 1:-1], memory


def unaligned(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    memory = holder(ROWS * COLUMNS + 2, dtype=dtype)
    return memory[1:-1].view(ROWS, COLUMNS), memory


CASES = [
    (layout, dtype)
    for layout in (transposed, strided, inner, unaligned)
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.complex64)
]


def contents(rank: int, dtype: torch.dtype) -> torch.Tensor:
    real = (torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) + 3 * rank) % 13
    return (
        torch.complex(real.float(), real.float() + 1).to(dtype)
        if dtype.is_complex
        else (real.to(dtype))
    )


def check_layout(rank: Rank, layout: Layout, dtype: torch.dtype) -> None:
    n = rank.world_size
    inputs = [contents(r, dtype) for r in range(n)]
    total = torch.stack(inputs).sum(0).to(dtype)
    case = f"{layout.__name__} {dtype}"

    def fresh(filled: bool) -> torch.Tensor:
        view, memory = layout(dtype)
        if filled:
            view.copy_(inputs[rank.rank])
        kept.append((view, memory, memory.clone()))
        return view

    kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    tensor = fresh(True)
    dist.all_reduce(tensor)
    assert_same_bits(tensor, total, f"all_reduce, {case}")

    tensor = fresh(True)
    dist.reduce(tensor, 1)
    assert_same_bits(tensor, total if rank.rank == 1 else inputs[rank.rank], f"reduce, {case}")

    tensor = fresh(True)
    dist.broadcast(tensor, 1)
    assert_same_bits(tensor, inputs[1], f"broadcast, {case}")

    outputs = [fresh(False) for _ in range(n)]
    dist.all_gather(outputs, fresh(True))
    for output, expected in zip(outputs, inputs, strict=True):
        assert_same_bits(output, expected, f"all_gather, {case}")

    output = fresh(False)
    dist.reduce_scatter(output, [fresh(True) for _ in range(n)])
    assert_same_bits(output, total, f"reduce_scatter, {case}")

    outputs = [fresh(False) for _ in range(n)]
    dist.gather(fresh(True), outputs if rank.rank == 0 else None)
    if rank.rank == 0:
        for output, expected in zip(outputs, inputs, strict=True):
            assert_same_bits(output, expected, f"gather, {case}")

    output = fresh(False)
    dist.scatter(output, [fresh(True) for _ in range(n)] if rank.rank == 0 else None)
    assert_same_bits(output, inputs[0], f"scatter, {case}")

    outputs = [fresh(False) for _ in range(n)]
    dist.all_to_all(outputs, [fresh(True) for _ in range(n)])
    for output, expected in zip(outputs, inputs, strict=True):
        assert_same_bits(output, expected, f"all_to_all, {case}")

    output = fresh(False)
    dist.all_to_all_single(output, fresh(True))
    rows = ROWS // n
    parts = [x[rank.rank * rows : (rank.rank + 1) * rows] for x in inputs]
    assert_same_bits(output, torch.cat(parts), f"all_to_all_single, {case}")

    output = fresh(False)
    sent = dist.isend(fresh(True), (rank.rank + 1) % n)
    dist.recv(output, (rank.rank - 1) % n)
    sent.wait()
    assert_same_bits(output, inputs[rank.rank - 1], f"send and recv, {case}")

    for view, memory, before in kept:
        # What lies between the view's elements is still what it was.
        marks = torch.zeros_like(memory, dtype=torch.bool)
        marks.as_strided(view.size(), view.stride(), view.storage_offset()).fill_(True)
        assert torch.equal(memory[~marks], before[~marks]), f"wrote beyond the view, {case}"


def check_layouts(rank: Rank) -> None:
    for layout, dtype in CASES:
        check_layout(rank, layout, dtype)


@pytest.mark.parametrize("world_size", [2, 3])
def test_layouts(world_size: int) -> None:
    on_processes(check_layouts, world_size, backend="ring")


def expanded_inputs(rank: Rank) -> None:
    n = rank.world_size
    own = torch.tensor([float(rank.rank)]).expand(n * 4)
    output = torch.empty(4)
    dist.reduce_scatter_tensor(output, own)
    assert_same_bits(output, torch.full((4,), sum(map(float, range(n)))))
    output = torch.empty(n * n * 4)
    dist.all_gather_into_tensor(output, own)
    assert_same_bits(output, torch.arange(float(n)).repeat_interleave(n * 4))
    output = torch.empty(n * 4)
    dist.all_to_all_single(output, own)
    assert_same_bits(output, torch.arange(float(n)).repeat_interleave(4))


def test_expanded_inputs() -> None:
    on_processes(expanded_inputs, 3, backend="ring")


def expanded_output(rank: Rank) -> None:
    one = torch.ones(1)
    with pytest.raises(ValueError, match=r"all_reduce.*share memory"):
        dist.all_reduce(one.expand(8))
    assert one.item() == 1.0
    dist.all_reduce(one)
    assert one.item() == rank.world_size


def test_output_whose_elements_share_memory_is_refused() -> None:
    on_processes(expanded_output, 2, backend="ring")


def every_alignment(rank: Rank) -> None:
    for count in (5, 100, 40_000):
        for offset in range(17):
            own = torch.empty(count + offset, dtype=torch.uint8)[offset:]
            own.copy_(torch.arange(count) % 100 + rank.rank)
            expected = torch.arange(count) % 100 * rank.world_size
            expected += sum(range(rank.world_size))
            dist.all_reduce(own)
            assert_same_bits(own, expected.to(torch.uint8), f"{count} at {offset}")


def test_every_alignment() -> None:
    on_processes(every_alignment, 3, backend="ring")


def watched_by_autograd(rank: Rank) -> None:
    leaf = torch.full((5,), float(rank.rank + 1), requires_grad=True)
    dist.all_reduce(leaf)
    assert_same_bits(leaf, torch.full((5,), 3.0))
    assert leaf.requires_grad and leaf.is_leaf

    matrix = torch.full((3, 4), float(rank.rank + 1), requires_grad=True)
    dist.all_reduce(matrix.detach().t())
    dist.broadcast(matrix, 0)
    assert_same_bits(matrix, torch.full((3, 4), 3.0))

    column = torch.ones(4, 3, requires_grad=True)
    with torch.no_grad():
        view = column[:, 1]
    dist.all_reduce(view)
    assert_same_bits(column[:, 1], torch.full((4,), 2.0))

    outputs = [torch.empty(5) for _ in range(2)]
    dist.all_gather(outputs, leaf * 2)
    assert_same_bits(outputs[1], torch.full((5,), 6.0))


def test_tensors_that_require_grad() -> None:
    on_processes(watched_by_autograd, 2, backend="ring")
