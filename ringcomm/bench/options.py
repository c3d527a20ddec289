"""What can be measured, under nccl-tests' names, and what a choice of it means.

Its names are in --help, which does not wait for torch: what needs torch is imported in `check`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ringcomm.usage import UsageError, did_you_mean, refusing

COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "sendrecv",
    "pingpong",
    "barrier",
)
SHARED = ":shared"  # behind the name of one whose tensors its peers are to reach
BACKENDS = ("ring", "ringcomm", "ring:shared", "ringcomm:shared", "gloo", "nccl", "mpi", "oneccl")
PREFIXED = ("mpi:", "oneccl:")  # and the folder of one of several
# nccl-tests' names, and torch's.
DTYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
# Whether the input's memory is the output's, too; what cannot be in place is always measured.
PLACEMENTS = {"both": (False, True), "out-of-place": (False,), "in-place": (True,)}
ALL_OPS = OPS[:5]  # what "all" means: the others are for integers only


def backends(text: str) -> list[str]:
    """A parser of --backends.

    Raises:
        argparse.ArgumentTypeError: an unknown name, or a folder without an MPI.
    """
    names = text.split(",")
    for name in names:
        if name.startswith(PREFIXED):
            mpirun = Path(name.partition(":")[2]) / "bin" / "mpirun"
            if not mpirun.is_file():
                raise argparse.ArgumentTypeError(f"{name!r}: there is no {mpirun}")
        elif name not in BACKENDS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is none of {', '.join(BACKENDS)}, mpi:PREFIX and oneccl:PREFIX"
                + did_you_mean(name, BACKENDS)
            )
    return list(dict.fromkeys(names))


def sizes(options: argparse.Namespace) -> list[int]:
    """The sizes from minbytes to maxbytes.

    Raises:
        UsageError: minbytes is above maxbytes.
    """
    if options.minbytes > options.maxbytes:
        raise UsageError(
            f"-b is {options.minbytes} bytes, above -e, which is {options.maxbytes} bytes"
        )
    found = [options.minbytes]
    while found[-1] * options.stepfactor <= options.maxbytes:
        found.append(found[-1] * options.stepfactor)
    return found


def device_type(options: argparse.Namespace) -> str:
    """Where the tensors are: "cpu" or "cuda"."""
    return str(options.device or ("cuda" if "nccl" in options.backends else "cpu"))


def check(options: argparse.Namespace, world_size: int) -> None:
    """What no single option shows.

    Raises:
        UsageError: the options do not fit together, or do not fit this machine.
    """
    import torch

    from ringcomm.options import Options, choices
    from ringcomm.plan.algorithms import host_of

    sizes(options)
    with refusing():
        for algorithm in options.algorithms:
            choices(Options(algorithm))
        if options.ranks_per_host is not None:
            host_of(options.ranks_per_host, world_size)
    if options.root >= world_size:
        raise UsageError(f"-r is {options.root}, and the ranks are 0 to {world_size - 1}")
    if device_type(options) == "cpu" and "nccl" in options.backends:
        raise UsageError("the backend nccl needs --device cuda: it has no CPU tensors")
    if device_type(options) == "cpu" and options.cudagraph:
        raise UsageError("-G needs --device cuda: only GPUs have CUDA graphs")
    if device_type(options) == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda and the backend nccl need a GPU, and torch finds none")
