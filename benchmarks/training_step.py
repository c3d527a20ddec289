"""Times data-parallel training steps, and how much of the communication backward hides.

    python benchmarks/training_step.py --nproc 2 --models conv,gpt --backends ring,gloo

The same step is taken in four ways, in turn, on every rank:

    alone        forward, backward and optimizer; the gradients stay as they are
    DDP          DistributedDataParallel: gradients in buckets, each reduced while backward goes on
    one bucket   backward, then one all-reduce of all gradients together
    no buckets   backward, then an all-reduce for each parameter

"all-reduce" is the time of that one all-reduce by itself. What DDP hides is the share of it that
its step does not add to a step alone:

    hidden = 1 - (DDP - alone) / all-reduce

It is "none" where DDP adds more than that all-reduce takes, as it can where the communication takes
the same cores as backward, or others do. Times are medians over the samples of the slowest rank's
time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import TIMEOUT, check_backends, own_device, run_on_ranks
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringcomm
from ringcomm.arguments import number, several
from ringcomm.bench.contenders import TorchContender, make_contenders
from ringcomm.units import readable_seconds
from ringcomm.usage import Parser

BATCH, VOCABULARY, CONTEXT, WIDTH = 8, 1000, 64, 128


class GptBlock(nn.Module):
    """Embedding, one pre-norm block of causal attention and a 4x MLP, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.block(self.embedding(tokens), src_mask=self.mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def conv_data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))


def gpt_data() -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randint(VOCABULARY, (BATCH, CONTEXT)) for _ in range(2))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable]] = {
    "conv": (conv_net, conv_data),
    "gpt": (GptBlock, gpt_data),
}


class Trainer:
    """One model with one way to average its gradients."""

    def __init__(self, name: str, group: dist.ProcessGroup, device: torch.device, way: str) -> None:
        torch.manual_seed(0)
        make_model, make_data = MODELS[name]
        self.network = make_model().to(device)
        self.parameters = list(self.network.parameters())
        self.way, self.group, self.device = way, group, device
        self.model: nn.Module = self.network
        if way == "DDP":
            self.model = DistributedDataParallel(self.network, process_group=group)
        self.optimizer = torch.optim.SGD(self.parameters, 1e-3)
        torch.manual_seed(1 + dist.get_rank())
        self.inputs, self.targets = (tensor.to(device) for tensor in make_data())

    def step(self) -> None:
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.targets.flatten())
        loss.backward()
        if self.way == "one bucket":
            self._average_at_once()
        elif self.way == "no buckets":
            for parameter in self.parameters:
                self._average(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def communicate(self) -> None:
        """The one all-reduce of all gradients, alone."""
        self._average(self.flat_gradients)

    def prepare_to_communicate(self) -> None:
        total = sum(parameter.numel() for parameter in self.parameters)
        self.flat_gradients = torch.zeros(total, device=self.device)

    def _average_at_once(self) -> None:
        gradients = [parameter.grad for parameter in self.parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._average(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _average(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)
        tensor /= dist.get_world_size(self.group)


WAYS = ("alone", "DDP", "one bucket", "no buckets")


def seconds_of(call: Callable[[], None], device: torch.device) -> float:
    ringcomm.barrier()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(
    name: str, contenders: list[TorchContender], device: torch.device, samples: int
) -> dict[str, dict[str, float]]:
    """Median seconds by contender and way.

    Raises:
        RuntimeError: after the same steps, two ways have parameters that differ.
    """
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    trained = []
    for contender in contenders:
        for way in WAYS:
            trainer = Trainer(name, contender.group, device, way)
            calls[contender.name, way] = trainer.step
            if way != "alone":
                trained.append(trainer)
        bare = Trainer(name, contender.group, device, "")
        bare.prepare_to_communicate()
        calls[contender.name, "all-reduce"] = bare.communicate
    taken = torch.zeros(2 + samples, len(calls), dtype=torch.float64)
    for sample in taken:
        for index, call in enumerate(calls.values()):
            sample[index] = seconds_of(call, device)
    for other in trained[1:]:
        for a, b in zip(trained[0].parameters, other.parameters, strict=True):
            if not torch.allclose(a, b, rtol=1e-4, atol=1e-5):
                raise RuntimeError(f"{name}: {other.way} ends with other parameters")
    ringcomm.all_reduce(taken, ringcomm.ReduceOp.MAX)
    medians = [statistics.median(column) for column in taken[2:].T.tolist()]
    result: dict[str, dict[str, float]] = {}
    for (contender_name, way), median in zip(calls, medians, strict=True):
        result.setdefault(contender_name, {})[way] = median
    return result


def hidden_share(seconds: dict[str, float]) -> str:
    added = seconds["DDP"] - seconds["alone"]
    share = 1 - added / seconds["all-reduce"]
    return f"{share:.0%}" if share >= 0 else "none"


def run(options: argparse.Namespace) -> None:
    device = own_device(options.backends)
    contenders = make_contenders(options.backends, ["auto"], TIMEOUT)
    table = Table("model", "backend", *WAYS, "all-reduce", "hidden", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for name in options.models:
        for backend, seconds in measure(name, contenders, device, options.iters).items():
            times = (readable_seconds(seconds[way]) for way in (*WAYS, "all-reduce"))
            table.add_row(name, backend, *times, hidden_share(seconds))
    if dist.get_rank() == 0:
        console = Console(soft_wrap=True, highlight=False)
        for name in options.models:
            count = sum(p.numel() for p in MODELS[name][0]().parameters())
            console.print(f"{name}: {count} parameters, {BATCH} samples per rank and step")
        console.print(f"{dist.get_world_size()} ranks, {device.type}; medians of {options.iters}\n")
        console.print(table)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(1), default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--models", type=several(tuple(MODELS)), default=list(MODELS))
    parser.add_argument(
        "--backends",
        type=several(("ring", "gloo", "nccl")),
        default=["ring", "nccl" if torch.cuda.is_available() else "gloo"],
    )
    parser.add_argument("--iters", type=number(1), default=21, help="samples (default: 21)")
    options = parser.parse_args()
    check_backends(parser, options.backends)
    return run_on_ranks(run, options)


if __name__ == "__main__":
    sys.exit(main())
