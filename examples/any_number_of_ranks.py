"""The same bits among 1, 2 and 4 ranks: a training and the logits of a divided layer.

A sum of floats depends on the order in which it is added. So a batch always has 8 micro-batches and
a matrix 8 parts, whatever the number of ranks, and these are added in the same pairs.

    torchrun --nproc-per-node 4 examples/any_number_of_ranks.py [--backend ring|gloo|nccl]
    python examples/any_number_of_ranks.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from launch import device, launch, say, title
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm.cli.training import read_digits
from ringcomm.parallel import Microbatches, average_hook, microbatch_hook

PARTS = 8
STEPS, IMAGES = 20, 8  # of a micro-batch

Step = list[tuple[torch.Tensor, torch.Tensor]]  # the images and labels of micro-batches


def groups() -> dict[int, ProcessGroup]:
    """A group of each size that this rank is in: 1, 2, 4, ... ranks."""
    own = {}
    size = 1
    while size <= PARTS and dist.get_world_size() % size == 0:
        for first in range(0, dist.get_world_size(), size):
            ranks = range(first, first + size)
            group = ringcomm.new_group(list(ranks), reproducible="world")
            if dist.get_rank() in ranks:
                own[size] = group
        size *= 2
    return own


def steps(group: ProcessGroup) -> Iterator[Step]:
    """The micro-batches that this rank has of each batch."""
    images, labels = read_digits()
    for step in range(STEPS):
        first = step * PARTS * IMAGES
        batch = [
            (images[at : at + IMAGES].float() / 16, labels[at : at + IMAGES].long())
            for at in range(first, first + PARTS * IMAGES, IMAGES)
        ]
        number = PARTS // group.size()
        yield batch[group.rank() * number : (group.rank() + 1) * number]


def make_network(group: ProcessGroup) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)]
    return DistributedDataParallel(nn.Sequential(*layers).to(device()), process_group=group)


def train(
    network: DistributedDataParallel,
    batches: Iterator[Step],
    backward: Callable[[DistributedDataParallel, Step], None],
) -> torch.Tensor:
    """The parameters at the end."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for microbatches in batches:
        optimizer.zero_grad()
        backward(network, [(x.to(device()), y.to(device())) for x, y in microbatches])
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def each_microbatch(network: DistributedDataParallel, microbatches: Step) -> None:
    for images, labels in microbatches:
        functional.cross_entropy(network(images), labels).backward()


def all_at_once(network: DistributedDataParallel, microbatches: Step) -> None:
    images = torch.cat([x for x, _ in microbatches])
    labels = torch.cat([y for _, y in microbatches])
    functional.cross_entropy(network(images), labels).backward()


def trained_in_parts(group: ProcessGroup) -> torch.Tensor:
    network = make_network(group)
    network.register_comm_hook(Microbatches(PARTS // group.size(), group), microbatch_hook)
    return train(network, steps(group), each_microbatch)


def trained_as_usual(group: ProcessGroup) -> torch.Tensor:
    network = make_network(group)
    network.register_comm_hook(group, average_hook)
    return train(network, steps(group), all_at_once)


def logits(group: ProcessGroup) -> torch.Tensor:
    """A layer whose inputs are divided: a rank multiplies each of its parts by itself."""
    torch.manual_seed(0)
    x, weight = torch.randn(16, 512).to(device()), torch.randn(512, 100).to(device())
    number = PARTS // group.size()
    own = slice(group.rank() * number, (group.rank() + 1) * number)
    parts = zip(x.chunk(PARTS, 1)[own], weight.chunk(PARTS, 0)[own], strict=True)
    return ringcomm.sum_of_parts([inputs @ rows for inputs, rows in parts], group)


def main() -> None:
    by_size = groups()
    for name, result_of in [
        ("parameters, with gradients of micro-batches in pairs", trained_in_parts),
        ("parameters, as usual", trained_as_usual),
        ("logits of a layer in parts", logits),
    ]:
        title(name)
        alone = result_of(by_size[1])
        for size, group in [*by_size.items()][1:]:
            result = result_of(group)
            num_others = int((result.view(torch.int32) != alone.view(torch.int32)).sum())
            say(f"among {size} ranks {num_others} of {alone.numel()} differ from one rank's")
            assert num_others == 0 or result_of is trained_as_usual


if __name__ == "__main__":
    launch(main)
