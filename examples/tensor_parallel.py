"""Tensor parallelism: every rank has all of the data and its own part of each layer.

Three networks, each compared with one process in its outputs and all gradients: layers divided by
columns with an all-gather after each; an embedding divided by rows and a block divided by columns,
then by rows, with a single all-reduce; and the same block divided by torch's parallelize_module.

    torchrun --nproc-per-node 4 examples/tensor_parallel.py [--backend ring|gloo|nccl]
    python examples/tensor_parallel.py
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from launch import device, launch, say, title
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

from ringcomm.parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    gather_from_group,
)

BATCH, LAYERS = 16, 3
TOLERANCE = 1e-12  # float64: sums of products in another order


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def all_gather_network() -> None:
    """Every layer yields a part of the columns, which an all-gather puts together for the next."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dim = 8 * world_size
    torch.manual_seed(0)
    x = torch.randn(BATCH, dim, dtype=torch.float64).to(device())
    whole = [
        (torch.randn(dim, dim, dtype=torch.float64) / dim**0.5).to(device()).requires_grad_()
        for _ in range(LAYERS)
    ]
    expected = x
    for weight in whole:
        expected = functional.gelu(expected @ weight)
    expected.square().sum().backward()

    own = [weight.detach().chunk(world_size, 1)[rank].clone().requires_grad_() for weight in whole]
    output = x
    for number, weight in enumerate(own):
        part = functional.gelu(output @ weight)
        # The next layer is divided, too, so what the ranks send back through it is to be summed.
        # After the last one, all ranks compute the same loss, and have the same gradient.
        output = gather_from_group(part, 1, sum_gradient=number < LAYERS - 1)
    output.square().sum().backward()

    close(output, expected)
    for ours, theirs in zip(own, whole, strict=True):
        close(ours.grad, theirs.grad.chunk(world_size, 1)[rank])
    say(f"{LAYERS} x: {tuple(x.shape)} @ {tuple(own[0].shape)}, all-gathered {tuple(output.shape)}")


class Block(nn.Module):
    """What is compared: an embedding, and the feed-forward block of a transformer."""

    def __init__(self, vocabulary: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x + self.down(functional.gelu(self.up(x)))


def run(block: Block) -> torch.Tensor:
    """Forward and backward of the same tokens on every rank; returns the output."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = block.embedding.num_embeddings
    tokens = torch.randint(vocabulary, (BATCH, 5), generator=generator).to(device())
    output = block(tokens)
    output.square().sum().backward()
    return output


def column_row_and_vocabulary(whole: Block, expected: torch.Tensor) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    block = copy.deepcopy(whole)
    block.embedding = VocabParallelEmbedding(whole.embedding)
    block.up = ColumnParallelLinear(whole.up)
    block.down = RowParallelLinear(whole.down)
    close(run(block), expected)

    def own(gradient: torch.Tensor, dim: int) -> torch.Tensor:
        return gradient.tensor_split(world_size, dim)[rank]

    close(block.embedding.weight.grad, own(whole.embedding.weight.grad, 0))
    close(block.up.weight.grad, own(whole.up.weight.grad, 0))
    close(block.up.bias.grad, own(whole.up.bias.grad, 0))
    close(block.down.weight.grad, own(whole.down.weight.grad, 1))
    close(block.down.bias.grad, whole.down.bias.grad)
    shapes = [tuple(part.weight.shape) for part in (block.embedding, block.up, block.down)]
    say(f"embedding {shapes[0]}, up {shapes[1]}, down {shapes[2]}")


def by_torch(whole: Block, expected: torch.Tensor) -> None:
    block = copy.deepcopy(whole)
    block.zero_grad()
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    close(run(block), expected)
    gradients = [parameter.grad for parameter in block.parameters()]
    for ours, theirs in zip(gradients, whole.parameters(), strict=True):
        close(ours.full_tensor() if isinstance(ours, DTensor) else ours, theirs.grad)
    say(f"up {block.up.weight.placements}, down {block.down.weight.placements}")


def main() -> None:
    title("layers divided by columns, an all-gather after each")
    all_gather_network()

    torch.manual_seed(0)
    whole = Block(vocabulary=50, dim=2 * dist.get_world_size()).double().to(device())
    expected = run(whole).detach()
    title("an embedding divided by rows, a layer by columns, one by rows")
    column_row_and_vocabulary(whole, expected)
    title("parallelize_module")
    by_torch(whole, expected)


if __name__ == "__main__":
    launch(main)
