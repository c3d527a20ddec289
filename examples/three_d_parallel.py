"""Data, tensor and pipeline parallelism at once: a mesh of ranks with three dimensions.

8 ranks are 2 x 2 x 2: data x pipeline x tensor. Rank 5, for example, is in the second copy of the
network (data 1), which works on the second half of each batch; holds the first stage (pipeline 0);
and of that the second half of each layer (tensor 1):

    data 0    stage 0   ranks 0 1          data 1    stage 0   ranks 4 5
              stage 1   ranks 2 3                    stage 1   ranks 6 7

The ranks of a row divide layers, those of a column send each other activations and gradients, and
those at the same place in both halves average gradients. What they train must be what one process
trains.

    torchrun --nproc-per-node 8 examples/three_d_parallel.py [--backend ring|gloo|nccl]
    python examples/three_d_parallel.py
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from launch import device, launch, say, title
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional

from ringcomm.parallel import (
    ColumnParallelLinear,
    GradientAverager,
    Pipeline,
    RowParallelLinear,
    VocabParallelEmbedding,
    one_forward_one_backward,
)

STAGES, TENSOR = 2, 2
VOCABULARY, DIM, LENGTH = 21, 16, 6
MICROBATCHES, ROWS, STEPS = 4, 3, 5  # ROWS of one micro-batch
LEARNING_RATE = 0.5


def make_mesh(num_copies: int) -> DeviceMesh:
    shape, names = (num_copies, STAGES, TENSOR), ("data", "pipeline", "tensor")
    return init_device_mesh(device().type, shape, mesh_dim_names=names)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def make_network() -> nn.ModuleList:
    """The stages, whole: embedding and block; block and head."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Embedding(VOCABULARY, DIM), FeedForward())
    last = nn.Sequential(FeedForward(), nn.Linear(DIM, VOCABULARY))
    return nn.ModuleList([first, last]).double().to(device())


def divide(stage: nn.Module, group: ProcessGroup) -> None:
    """Leaves of an embedding and the blocks in a stage this rank's part."""
    for name, module in stage.named_children():
        if isinstance(module, nn.Embedding):
            setattr(stage, name, VocabParallelEmbedding(module, group))
        elif isinstance(module, FeedForward):
            module.up = ColumnParallelLinear(module.up, group)
            module.down = RowParallelLinear(module.down, group)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def make_batch(step: int, num_copies: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the tokens that are to be predicted from them, of all copies of the network."""
    generator = torch.Generator().manual_seed(step)
    shape = (num_copies * MICROBATCHES * ROWS, LENGTH)
    tokens = torch.randint(VOCABULARY, shape, generator=generator).to(device())
    return tokens, (3 * tokens + 1) % VOCABULARY


def train_alone(num_copies: int) -> tuple[nn.ModuleList, list[float]]:
    """What one process trains on the whole batches."""
    stages = make_network()
    optimizer = torch.optim.SGD(stages.parameters(), LEARNING_RATE, momentum=0.9)
    losses = []
    for step in range(STEPS):
        tokens, targets = make_batch(step, num_copies)
        optimizer.zero_grad()
        of_batch = loss(nn.Sequential(*stages)(tokens), targets)
        of_batch.backward()
        optimizer.step()
        losses.append(of_batch.item())
    return stages, losses


def main() -> None:
    world_size = dist.get_world_size()
    if world_size % (STAGES * TENSOR):
        sys.exit(f"this example needs a multiple of {STAGES * TENSOR} ranks, got {world_size}")
    num_copies = world_size // (STAGES * TENSOR)
    mesh = make_mesh(num_copies)
    backward = make_mesh(num_copies) if dist.get_backend() == "nccl" else mesh  # see Pipeline
    copy, number, _ = mesh.get_coordinate()

    title(f"{num_copies} copies x {STAGES} stages x {TENSOR} parts of each layer")
    stage = make_network()[number]
    divide(stage, mesh.get_group("tensor"))
    parameters = list(stage.parameters())
    averager = GradientAverager(parameters, mesh.get_group("data"), backwards=MICROBATCHES)
    pipeline = Pipeline(
        stage,
        loss,
        one_forward_one_backward,
        MICROBATCHES,
        input_shape=(ROWS, LENGTH, DIM),
        dtype=torch.float64,
        device=device(),
        group=mesh.get_group("pipeline"),
        gradient_group=backward.get_group("pipeline"),
    )
    optimizer = torch.optim.SGD(parameters, LEARNING_RATE, momentum=0.9)
    losses = []
    for step in range(STEPS):
        tokens, targets = (part.chunk(num_copies)[copy] for part in make_batch(step, num_copies))
        optimizer.zero_grad()
        of_copy = pipeline.step(tokens, targets)
        averager.finish()
        optimizer.step()
        if of_copy is not None:
            dist.all_reduce(of_copy, dist.ReduceOp.AVG, group=mesh.get_group("data"))
            losses.append(of_copy.item())

    alone, expected = train_alone(num_copies)
    divide(alone[number], mesh.get_group("tensor"))
    for ours, theirs in zip(parameters, alone[number].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    if losses:
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
        assert losses[-1] < losses[0]
    held = sum(parameter.numel() for parameter in parameters)
    total = sum(parameter.numel() for parameter in make_network().parameters())
    trained = f", loss {losses[0]:.3f} -> {losses[-1]:.3f}" if losses else ""
    say(f"copy {copy}, stage {number}: {held} of {total} parameters, equal{trained}")


if __name__ == "__main__":
    launch(main, nproc=8, at_least=4)
