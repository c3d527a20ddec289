"""Data parallelism: every rank has the whole network and its own part of the data.

Gradients are averaged in three ways: each by an all-reduce of its own after backward, in buckets
while backward still runs, and by torch's DistributedDataParallel. All of them must train the
network that a single process trains on all of the data.

    torchrun --nproc-per-node 4 examples/data_parallel.py [--backend ring|gloo|nccl]
    python examples/data_parallel.py
"""

import functools
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from launch import device, launch, say, title
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from ringcomm.cli.training import read_digits
from ringcomm.parallel import GradientAverager, average_hook

EPOCHS = 2
PER_RANK = 32  # images per rank and step

Batch = tuple[torch.Tensor, torch.Tensor]


@functools.cache
def digits() -> Dataset[Batch]:
    """1797 images of handwritten digits, (64,) float64 from 0 to 1, and their labels."""
    images, labels = read_digits()
    return TensorDataset(images.double() / 16, labels.long())


def make_network() -> nn.Module:
    torch.manual_seed(0)  # all ranks begin with the same parameters
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers).double().to(device())


def partitioned(rank: int) -> Iterator[Batch]:
    """A rank's batches if the images are dealt out once, an equal part to each rank."""
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    part = order[: len(order) // dist.get_world_size() * dist.get_world_size()]
    own = Subset(digits(), part.chunk(dist.get_world_size())[rank].tolist())
    for _ in range(EPOCHS):
        yield from DataLoader(own, PER_RANK, drop_last=True)


def sampled(rank: int) -> Iterator[Batch]:
    """A rank's batches if each epoch deals out the images again."""
    dataset = digits()
    sampler = DistributedSampler(dataset, dist.get_world_size(), rank, drop_last=True)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        yield from DataLoader(dataset, PER_RANK, sampler=sampler, drop_last=True)


def train(
    network: nn.Module, batches: Iterator[Batch], average: Callable[[], None] = lambda: None
) -> list[float]:
    """Trains the network, and returns the losses; `average` is called after each backward."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(images.to(device())), labels.to(device()))
        loss.backward()
        average()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained_alone(batches_of: Callable[[int], Iterator[Batch]]) -> nn.Module:
    """What a single process trains: each of its batches is all ranks' batches together."""
    network = make_network()
    everyones = zip(*(batches_of(rank) for rank in range(dist.get_world_size())), strict=True)
    train(
        network,
        (
            (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
            for parts in everyones
        ),
    )
    return network


def compare(network: nn.Module, alone: nn.Module, losses: list[float]) -> None:
    differences = [
        (ours - theirs).abs().max().item()
        for ours, theirs in zip(network.parameters(), alone.parameters(), strict=True)
    ]
    say(
        f"{len(losses)} steps, own loss {losses[0]:.2f} -> {losses[-1]:.2f}, "
        f"from one process's parameters at most {max(differences):.0e}"
    )
    # float64: only the order of additions differs.
    assert max(differences) < 1e-12
    assert losses[-1] < losses[0] / 2


def main() -> None:
    rank = dist.get_rank()
    alone = trained_alone(partitioned)

    title("naive: after backward, an all-reduce for each parameter")
    network = make_network()

    def average_each() -> None:
        for parameter in network.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)

    compare(network, alone, train(network, partitioned(rank), average_each))

    title("buckets: all-reduces of several gradients, while backward computes further ones")
    network = make_network()
    averager = GradientAverager(network.parameters(), bucket_nbytes=8 << 10)

    def finish() -> None:
        assert averager.num_started == averager.num_buckets  # all of them began in backward
        averager.finish()

    losses = train(network, partitioned(rank), finish)
    compare(network, alone, losses)
    say(
        f"{averager.num_buckets} all-reduces per step, for {len([*network.parameters()])} gradients"
    )
    assert 1 < averager.num_buckets < len([*network.parameters()])

    title("DistributedDataParallel with a DistributedSampler, and our averaging as its hook")
    alone = trained_alone(sampled)
    network = DistributedDataParallel(make_network(), bucket_cap_mb=0.02)
    network.register_comm_hook(None, average_hook)
    compare(network, alone, train(network, sampled(rank)))


if __name__ == "__main__":
    launch(main)
