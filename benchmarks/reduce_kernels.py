"""Times the reductions alone: ringcomm's host and device code, torch's own operation, and a copy.

    python benchmarks/reduce_kernels.py --dtypes float32,bfloat16 --ops sum,max --sizes 64K,16M

One process, one thread, one GPU if there is one. Two inputs make one output; GB/s counts the bytes
read and written, three times the size, over the median time. The copy, of which the last column is
the share, counts two. All are timed in turn, and every result is compared with torch's first.
`cpu` is what the machine does best; `cpu:avx2` and the like what another machine would do, so that
no instruction set is forgotten.

On a GPU, a sample is the time between two events around --repeats calls, all of which are launched
before the first begins. Buffers that fit the GPU's cache stay there. A row is in the CSV as soon as
it is measured.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import torch
from common import listed, tools, write_csv
from gpu_suite import device as gpu
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.distributed import ReduceOp

from ringcomm.arguments import nbytes, number, several
from ringcomm.bench import machine
from ringcomm.bench.options import DTYPES
from ringcomm.bench.plot import readable
from ringcomm.usage import Parser

FIELDS = ("device", "dtype", "op", "nbytes", "ringcomm_s", "torch_s", "copy_s", "date", "on")
TORCH_OPS = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}
RING_OPS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
}
_SAMPLE_NBYTES = 1 << 22  # what a sample on the CPU moves at least: the clock is not to matter
_SPIN_CYCLES = 2_000_000  # about a millisecond, in which the host launches a sample's calls


def host_timer(call: Callable[[], object], repeats: int) -> Callable[[], float]:
    """A function that returns the seconds that one call takes."""

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    return seconds


def device_timer(call: Callable[[], object], repeats: int) -> Callable[[], float]:
    """The same on a GPU, which spins until all calls are launched."""

    def seconds() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_SPIN_CYCLES)
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / repeats

    return seconds


def reference(op: str, a: torch.Tensor, b: torch.Tensor, output: torch.Tensor) -> None:
    TORCH_OPS[op](a, b, out=output)


def measure(
    device: str, dtype: torch.dtype, op: str, size: int, samples: int, repeats: int
) -> dict[str, float]:
    """Median seconds, by "ringcomm_s", "torch_s" and "copy_s"; torch's is NaN where it has no op.

    Raises:
        RuntimeError: a result differs from torch's.
    """
    on = gpu.own(0) if device == "cuda" else torch.device("cpu")
    instructions = device.partition(":")[2]
    count = max(1, size // dtype.itemsize)
    generator = torch.Generator(on).manual_seed(0)
    a, b = (
        torch.randint(1, 8, (count,), generator=generator, device=on, dtype=torch.int32).to(dtype)
        for _ in range(2)
    )
    output, expected = torch.empty_like(a), torch.empty_like(a)
    reduce_local = tools().reduce_local
    calls = {
        "ringcomm_s": lambda: reduce_local([a, b], output, RING_OPS[op], instructions),
        "torch_s": lambda: reference(op, a, b, expected),
        "copy_s": lambda: output.copy_(a),
    }
    try:
        calls["torch_s"]()
    except (NotImplementedError, RuntimeError):  # float8: torch lacks most ops
        del calls["torch_s"]
        expected = TORCH_OPS[op](a.float(), b.float()).to(dtype)
    calls["ringcomm_s"]()
    if not torch.equal(output.view(torch.uint8), expected.view(torch.uint8)):
        raise RuntimeError(f"{op} of {count} {dtype} on {device} differs from torch's")
    if device == "cuda":
        timers = {name: device_timer(call, repeats) for name, call in calls.items()}
    else:
        repeats = max(1, _SAMPLE_NBYTES // (count * dtype.itemsize))
        timers = {name: host_timer(call, repeats) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in timers}
    for sample in range(samples + 2):
        for name, seconds in timers.items():
            if sample >= 2:
                taken[name].append(seconds())
            else:
                seconds()
    medians = {name: statistics.median(all_taken) for name, all_taken in taken.items()}
    return {"torch_s": float("nan"), **medians}


def table(rows: list[dict[str, object]]) -> Table:
    result = Table("device", "dtype", "op", "nbytes", box=None)
    for name in ("ringcomm", "torch", "copy", "of the copy"):
        result.add_column(name if name == "of the copy" else f"{name}\nGB/s", justify="right")
    for row in rows:
        size = int(row["nbytes"])
        rates = [
            factor * size / row[f"{name}_s"] / 1e9
            for name, factor in (("ringcomm", 3), ("torch", 3), ("copy", 2))
        ]
        shown = ["-" if rate != rate else f"{rate:.1f}" for rate in rates]
        result.add_row(
            *(str(row[field]) for field in FIELDS[:3]),
            readable(size),
            *shown,
            f"{rates[0] / rates[2]:.0%}",
        )
    return result


def main() -> int:
    instructions = tools().host_instructions()
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--devices",
        type=several(("cpu", "cuda", *(f"cpu:{name}" for name in instructions))),
        default=["cpu", "cuda"] if torch.cuda.device_count() > 0 else ["cpu"],
        help=f"comma-separated; here cpu:{', cpu:'.join(instructions)}, too",
    )
    parser.add_argument("--dtypes", type=several(tuple(DTYPES)), default=["float", "bfloat16"])
    parser.add_argument("--ops", type=several(tuple(TORCH_OPS)), default=["sum"])
    parser.add_argument(
        "--sizes", type=listed(nbytes), default="64K,1M,64M", help="bytes of each buffer"
    )
    parser.add_argument("--iters", type=number(1), default=15, help="samples (default: 15)")
    parser.add_argument("--repeats", type=number(1), default=20, help="calls in a GPU's sample")
    parser.add_argument("--csv", type=Path, help="write the seconds to this file, too")
    options = parser.parse_args()
    if "cuda" in options.devices and torch.cuda.device_count() == 0:
        parser.error("--devices cuda needs a GPU, and torch finds none")
    torch.set_num_threads(1)
    about = machine.describe(torch.device("cpu"), [])
    if "cuda" in options.devices:
        about["GPU"] = gpu.label()
    rows: list[dict[str, object]] = []
    cases = list(itertools.product(options.devices, options.dtypes, options.ops, options.sizes))
    console = Console(soft_wrap=True, highlight=False)
    terminal = Console(stderr=True)
    for device, name, op, size in track(
        cases, "measuring", console=terminal, transient=True, disable=not terminal.is_terminal
    ):
        dtype = getattr(torch, DTYPES[name])
        row = {"device": device, "dtype": name, "op": op, "nbytes": size}
        row |= measure(device, dtype, op, size, options.iters, options.repeats)
        row["date"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        row["on"] = gpu.label() if device == "cuda" else about["machine"]
        if options.csv:
            write_csv(options.csv, FIELDS, [row], append=bool(rows))
        rows.append(row)
    for key, value in about.items():
        console.print(f"# {key:<9}{value}")
    console.print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
