"""A language model that transformers divides among ranks generates what one process generates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import model
import pytest
import torch
import torch.distributed as dist
from alike import also_on_hosts
from ranks import Rank, on_processes
from torch.nn.functional import linear
from torch.utils import _pytree as pytree

import ringcomm

BATCHES, LENGTH, TOKENS = (1, 3), 16, 8
PARTS = 4  # of the inputs of each layer whose outputs are added
TIMEOUT = 250.0  # transformers takes long to import
SHAPES = [(1, 1), (1, 64), (8, 1), (4, 16)]  # batch and tokens
CASES = list(itertools.product(model.DTYPES, (False, True)))  # dtype, and whether sums have parts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"no {name}: pip install -e '.[models]'")
    model.make_model(512, 2).save_pretrained(tmp_path)
    return tmp_path


def generated(rank: Rank, folder: Path) -> list[tuple[torch.Tensor, float]]:
    """For each batch the texts, and how many all-reduces each token took."""
    divided = model.load(folder, "float32")
    found = [model.generate(divided, batch, LENGTH, TOKENS) for batch in BATCHES]
    return [(texts, sample.all_reduces) for texts, sample in found]


def check_tokens(folder: Path, world_size: int) -> None:
    whole = model.load(folder, "float32")
    expected = [model.generate(whole, batch, LENGTH, TOKENS)[0] for batch in BATCHES]
    assert len(expected[0][0, LENGTH:].unique()) > TOKENS // 2, "no token is repeated throughout"
    for found in on_processes(generated, world_size, folder, backend="ring", timeout=TIMEOUT):
        for (texts, all_reduces), those in zip(found, expected, strict=True):
            assert torch.equal(texts, those) and all_reduces == 4, "two of each layer"


@pytest.mark.slow
@also_on_hosts(1, "gloo")
def test_tokens_are_those_of_one_process(folder: Path, hosts: None) -> None:
    check_tokens(folder, 2)


@pytest.mark.slow
def test_tokens_of_four_ranks_are_those_of_one_process(folder: Path) -> None:
    check_tokens(folder, 4)


def local(tensor: Any) -> torch.Tensor:
    """What this rank has of it."""
    return getattr(tensor, "to_local", lambda: tensor)()


def add_in_parts(divided: Any, group: dist.ProcessGroup) -> None:
    """Layers whose outputs are added multiply each part of their inputs by itself."""
    number = PARTS // group.size()
    for name, layer in divided.named_modules():
        if name.endswith(("o_proj", "down_proj")):
            weights = [part.contiguous() for part in local(layer.weight).chunk(number, 1)]

            def forward(x: torch.Tensor, weights: list[torch.Tensor] = weights) -> torch.Tensor:
                inputs = (part.contiguous() for part in x.chunk(number, -1))
                return ringcomm.sum_of_parts(map(linear, inputs, weights), group)

            layer.forward = forward


def outputs(divided: Any, batch: int, length: int) -> Outputs:
    """The outputs of all modules by the modules' names, the logits last."""
    found: Outputs = []

    def record(name: str, output: Any) -> None:
        tensors = [each for each in pytree.tree_leaves(output) if isinstance(each, torch.Tensor)]
        if tensors:
            found.append((name, local(tensors[0]).clone()))

    hooks = [
        layer.register_forward_hook(lambda _, __, output, name=name: record(name, output))
        for name, layer in divided.named_modules()
        if name.startswith(("model.embed", "model.layers.")) or name == "lm_head"
    ]
    with torch.inference_mode():
        divided(model.prompts(batch, length), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


Outputs = list[tuple[str, torch.Tensor]]


def of_all_cases(rank: Rank, folder: Path) -> list[Outputs]:
    torch.set_num_threads(1)  # products of more threads may be added in another order
    group = ringcomm.new_group(reproducible="world")
    found = []
    for dtype, in_parts in CASES:
        divided = model.load(folder, dtype)
        if in_parts:
            add_in_parts(divided, group)
        found += [outputs(divided, *shape) for shape in SHAPES]
    return found


def first_that_differs(expected: Outputs, ours: Sequence[Outputs]) -> str | None:
    """The first module whose output is not that of one process, bit for bit."""
    for (name, tensor), *found in zip(expected, *ours, strict=True):
        if not same_bits(tensor, [each for _, each in found]):
            return name
    return None


def same_bits(expected: torch.Tensor, ours: list[torch.Tensor]) -> bool:
    """Whether each rank has the same, or all together if they divide its columns."""
    if ours[0].shape != expected.shape:
        return torch.equal(torch.cat(ours, -1), expected)
    return all(torch.equal(each, expected) for each in ours)


@pytest.mark.slow
def test_bits_are_those_of_one_process_if_sums_have_parts(folder: Path) -> None:
    """And else they first differ after a product whose inputs are divided."""

    def found(world_size: int) -> list[list[Outputs]]:
        return on_processes(of_all_cases, world_size, folder, backend="ring", timeout=TIMEOUT)

    (alone,) = found(1)
    for world_size in (2, 4):
        firsts = [
            first_that_differs(expected, ours)
            for expected, *ours in zip(alone, *found(world_size), strict=True)
        ]
        assert firsts == [
            None if in_parts else "model.layers.0.self_attn.o_proj"
            for _, in_parts in CASES
            for _ in SHAPES
        ]
