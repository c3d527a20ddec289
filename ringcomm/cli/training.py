"""Data-parallel training of a small network on handwritten digits."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import torch
from torch import nn
from torch.nn import functional

BATCH_PER_RANK = 64
LEARNING_RATE = 0.1
MOMENTUM = 0.9
TEST_IMAGES = 261  # leaves 1536 to train with, 24 batches of 64

Average = Callable[[torch.Tensor], None]  # a tensor becomes the average over all ranks, in place
Report = Callable[[int, float], None]  # is called after each epoch with its number and mean loss


@dataclass
class Digits:
    """8 x 8 images, float32 (n, 64) from 0 to 1, and their labels, int64 (n,) from 0 to 9."""

    images: torch.Tensor
    labels: torch.Tensor


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All 1797 images, uint8 (1797, 64) from 0 to 16, and their labels, uint8 (1797,) from 0 to 9.

    They are the test set of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
    UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49 (CC BY 4.0). In the file
    a label follows each image.
    """
    packed = resources.files(__package__).joinpath("digits.gz").read_bytes()
    digits = torch.frombuffer(bytearray(gzip.decompress(packed)), dtype=torch.uint8).view(-1, 65)
    return digits[:, :64], digits[:, 64]


def load_digits(device: torch.device) -> tuple[Digits, Digits]:
    """1536 images to train with, and the other 261 to test, on `device`."""
    images, labels = read_digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images = (images.to(torch.float32)[order] / 16).to(device)
    labels = labels.to(torch.int64)[order].to(device)
    test = slice(0, TEST_IMAGES)
    train = slice(TEST_IMAGES, None)
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def train(
    digits: Digits,
    batch: int,
    epochs: int,
    average: Average,
    share: slice = slice(None),
    report: Report = lambda epoch, loss: None,
) -> nn.Module:
    """Trains from the same start on the same batches in every process that calls it.

    Args:
        batch: images per step, over all ranks; a last smaller batch is left out.
        average: averages over the ranks.
        share: the part of each batch that this rank works on.
    """
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    network.to(digits.images.device)
    parameters = list(network.parameters())
    optimizer = torch.optim.SGD(parameters, LEARNING_RATE, MOMENTUM)
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(epoch))
        losses = []
        for chosen in order[: len(order) // batch * batch].view(-1, batch):
            mine = chosen[share]
            loss = functional.cross_entropy(network(digits.images[mine]), digits.labels[mine])
            gradients = torch.autograd.grad(loss, parameters)

            # One bucket for all gradients, and the loss: one all-reduce per step.
            bucket = torch.cat([loss.detach().view(1), *(g.flatten() for g in gradients)])
            average(bucket)
            losses.append(bucket[0].item())
            offset = 1
            for parameter in parameters:
                gradient = bucket[offset : offset + parameter.numel()]
                parameter.grad = gradient.view_as(parameter)
                offset += parameter.numel()
            optimizer.step()
        report(epoch, sum(losses) / len(losses))
    return network


def accuracy(network: nn.Module, digits: Digits) -> float:
    """The part of the digits that the network recognizes."""
    with torch.no_grad():
        return float((network(digits.images).argmax(1) == digits.labels).double().mean())


def max_difference(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between two networks' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def parameter_nbytes(network: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in network.parameters())
