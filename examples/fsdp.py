"""FSDP2: data parallelism in which each rank keeps but a part of parameters and optimizer state.

A layer's parameters are all-gathered just before it computes, and forgotten afterwards; in backward
they are all-gathered again, and the gradients reduce-scattered. A reduce-scatter and an all-gather
are what data parallelism's all-reduce consists of; the other all-gather is the price of the memory.

    torchrun --nproc-per-node 4 examples/fsdp.py [--backend ring|gloo|nccl]
    python examples/fsdp.py
"""

import torch
import torch.distributed as dist
from launch import device, launch, say, title
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

STEPS = 5
PER_RANK = 8


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    dim = 8 * dist.get_world_size()  # so that every rank can have an equal part
    layers = [
        nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(3)
    ]
    return nn.Sequential(*layers).double().to(device())


def train(network: nn.Module, part: slice) -> torch.optim.Optimizer:
    """Trains with AdamW on the given rows of each batch."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    shape = (PER_RANK * dist.get_world_size(), network[0][0].in_features)
    for _ in range(STEPS):
        batch = torch.randn(shape, generator=generator, dtype=torch.float64).to(device())
        optimizer.zero_grad()
        (network(batch[part]) - batch[part].roll(1, dims=1)).square().mean().backward()
        optimizer.step()
    return optimizer


def held_nbytes(optimizer: torch.optim.Optimizer) -> int:
    """What this rank keeps of parameters, gradients and optimizer state."""
    (parameters,) = (group["params"] for group in optimizer.param_groups)
    tensors = [*parameters, *(parameter.grad for parameter in parameters)]
    tensors += [state for p in parameters for state in optimizer.state[p].values() if state.dim()]
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum(t.numel() * t.element_size() for t in local)


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    alone = make_network()
    whole = held_nbytes(train(alone, slice(None)))

    title("fully_shard: each rank keeps its part")
    network = make_network()
    mesh = init_device_mesh(device().type, (world_size,))
    for layer in network:
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    own = held_nbytes(train(network, slice(rank * PER_RANK, (rank + 1) * PER_RANK)))

    differences = [
        (ours.full_tensor() - theirs).abs().max().item()
        for ours, theirs in zip(network.parameters(), alone.parameters(), strict=True)
    ]
    say(
        f"keeps {own} of {whole} bytes; from one process's parameters at most "
        f"{max(differences):.0e}"
    )
    assert max(differences) < 1e-12
    assert own * world_size == whole


if __name__ == "__main__":
    launch(main)
