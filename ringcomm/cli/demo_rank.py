"""One rank of the demo: it trains, checks the parameters, and compares the all-reduces."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.distributed import ProcessGroup

import ringcomm
from ringcomm import _C
from ringcomm.bench.timing import AllReduce, median_seconds
from ringcomm.cli import training
from ringcomm.units import readable_nbytes, readable_seconds

TIMEOUT = timedelta(seconds=60)
# float32 sums that are added in another order differ in their last bits, and training carries the
# difference along.
TOLERANCE = 1e-5
NBYTES = (1 << 10, 1 << 20, 16 << 20)


def usable_gpus() -> int:
    """How many GPUs there are; 0 if there is but one, or this build cannot use them."""
    number = torch.cuda.device_count() if not _C.missing_for_cuda() else 0
    return number if number >= 2 else 0


def run(epochs: int) -> int:
    """Returns the exit code: 1 if the parameters differ."""
    torch.set_num_threads(1)
    ringcomm.init(TIMEOUT)
    rank, world_size = ringcomm.get_rank(), ringcomm.get_world_size()
    device, peer = torch.device("cpu"), "gloo"
    if usable_gpus() >= world_size:
        device, peer = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(device)
    other_group = cast(ProcessGroup, dist.new_group(backend=peer, timeout=TIMEOUT))
    console = Console(quiet=rank != 0, soft_wrap=True)

    def ring_average(tensor: torch.Tensor) -> None:
        ringcomm.all_reduce(tensor, ringcomm.ReduceOp.AVG)

    def peer_average(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=other_group)
        tensor /= world_size

    def report(epoch: int, loss: float) -> None:
        console.print(f"epoch {epoch:3}   loss {loss:.4f}   " + "█" * round(20 * loss))

    train_digits, test_digits = training.load_digits(device)
    batch = min(training.BATCH_PER_RANK, len(train_digits.images) // world_size) * world_size
    share = slice(rank, None, world_size)
    console.print(
        f"\n[bold]{world_size} processes[/] train on {len(train_digits.images)} images of "
        f"handwritten digits, {batch} per step.\nAfter each step ringcomm averages their "
        "gradients.\n"
    )
    network = training.train(train_digits, batch, epochs, ring_average, share, report)
    console.print(
        f"\nrecognizes {training.accuracy(network, test_digits):.1%} of "
        f"{len(test_digits.images)} images it has not seen\n"
    )

    by_peer = training.train(train_digits, batch, epochs, peer_average, share)
    alone = training.train(train_digits, batch, epochs, lambda tensor: None)
    passed = True
    for other, name in ((alone, "one process"), (by_peer, peer)):
        difference = training.max_difference(network, other)
        agrees = difference <= TOLERANCE
        passed &= agrees
        console.print(
            f"{'[green]same' if agrees else '[red]NOT the same'}[/] parameters as from {name} on "
            f"the same batches: max difference {difference:.1e}, tolerance {TOLERANCE:.0e}"
        )

    table = Table("nbytes", "ring", peer, f"{peer} / ring", "max difference", box=None)
    for column in table.columns:
        column.justify = "right"
    kinds: dict[str, AllReduce] = {
        "ring": ringcomm.all_reduce,
        peer: lambda tensor: dist.all_reduce(tensor, group=other_group),
    }
    for nbytes in (*NBYTES[:1], training.parameter_nbytes(network), *NBYTES[1:]):
        seconds = median_seconds(kinds, nbytes, device=device)
        table.add_row(
            readable_nbytes(nbytes),
            readable_seconds(seconds["ring"]),
            readable_seconds(seconds[peer]),
            f"{seconds[peer] / seconds['ring']:.1f}",
            f"{_difference(nbytes, other_group, device):.1e}",
        )
    console.print("\nall_reduce of float32, median times\n")
    console.print(table)
    ringcomm.barrier()
    ringcomm.destroy_process_group()
    return 0 if passed else 1


def _difference(nbytes: int, other_group: ProcessGroup, device: torch.device) -> float:
    """Between the sums of the same random numbers, by the ring and by the other group."""
    numbers = torch.randn(nbytes // 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    by_ring = numbers.to(device)
    by_other = by_ring.clone()
    ringcomm.all_reduce(by_ring)
    dist.all_reduce(by_other, group=other_group)
    return float((by_ring - by_other).abs().max())
