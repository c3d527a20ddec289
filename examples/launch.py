"""What every example needs: its ranks started, and their lines printed in order."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import ringcomm  # noqa: F401  (registers "ring")
from ringcomm.groups import launched
from ringcomm.launch import RanksFailedError, run_ranks

TIMEOUT = timedelta(seconds=60)

# torch 2.14 gave these two new names, and warns about the old ones.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def launch(main: Callable[[], None], nproc: int = 4, at_least: int = 1) -> None:
    """Calls main on every rank of a default group, and ends the program if a rank fails.

    The ranks are torchrun's, if that started this program. Else this starts the program again, once
    per rank.

    Args:
        nproc: how many ranks to start if the command line does not say.
        at_least: with fewer ranks the example makes no sense.
    """
    program = sys.modules["__main__"]
    parser = argparse.ArgumentParser(
        description=program.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["ring", "gloo", "nccl"], default="ring")
    parser.add_argument(
        "--nproc", type=int, default=nproc, help="ranks to start, unless a launcher does"
    )
    options = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", options.nproc))
    if world_size < at_least:
        parser.error(f"this example needs {at_least} ranks or more, got {world_size}")
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", options.nproc))
    if options.backend == "nccl" and torch.cuda.device_count() < local_ranks:
        parser.error(
            f"nccl needs a GPU for each of the {local_ranks} ranks, and this host has "
            f"{torch.cuda.device_count()}; ring and gloo run on CPUs"
        )
    if not launched():
        try:
            run_ranks(sys.argv, options.nproc)
        except RanksFailedError as error:
            sys.exit(f"{error}; what it said is above")
        return
    torch.set_num_threads(1)
    if options.backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group(options.backend, timeout=TIMEOUT)
    main()
    dist.barrier()  # no rank leaves while others still wait for an answer
    dist.destroy_process_group()


def device() -> torch.device:
    """Where this rank's tensors belong: a GPU for nccl, else the CPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def title(text: str) -> None:
    """Prints a heading, once."""
    if dist.get_rank() == 0:
        print(f"\n{text}", flush=True)


def say(text: str) -> None:
    """Prints what every rank has to say, in rank order. All ranks call it."""
    texts: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    if dist.get_rank() == 0:
        for rank, line in enumerate(texts):
            print(f"  rank {rank}: {line}", flush=True)
