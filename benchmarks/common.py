"""What the benchmarks share: becoming several ranks, and where their tensors are."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringcomm
from ringcomm.cli.launch import RanksFailedError, run_ranks
from ringcomm.groups import launched

TIMEOUT = timedelta(seconds=120)


def run_on_ranks(
    rank_main: Callable[[argparse.Namespace], None],
    options: argparse.Namespace,
    timeout: timedelta = TIMEOUT,
) -> int:
    """Calls rank_main(options) on every rank, in a default group of "ring".

    The ranks are those of torchrun or mpirun, or else options.nproc processes that run this script
    again. Returns the exit code.
    """
    if not launched():
        try:
            run_ranks(sys.argv, options.nproc)
        except RanksFailedError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    torch.set_num_threads(1)
    ringcomm.init(timeout)
    rank_main(options)
    ringcomm.barrier()
    ringcomm.destroy_process_group()
    return 0


def own_device(backends: list[str]) -> torch.device:
    """This rank's GPU if NCCL is among the backends, else the CPU."""
    if "nccl" not in backends:
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def check_backends(parser: argparse.ArgumentParser, backends: list[str]) -> None:
    """Ends the program with a clear error if there is no GPU for NCCL."""
    if "nccl" in backends and not torch.cuda.is_available():
        parser.error("the backend nccl needs a GPU per rank, and torch finds none")


def write_csv(
    path: Path,
    fields: Sequence[str],
    rows: Iterable[Mapping[str, object]],
    append: bool = False,
) -> None:
    """Writes the rows, or adds them to those that are there; the first line names the fields."""
    append = append and path.exists()
    with path.open("a" if append else "w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        if not append:
            writer.writeheader()
        writer.writerows(rows)
