"""Reads Nsight Compute's CSV: how much of the memory bandwidth each kernel achieves.

    benchmarks/profile/ncu_reduce.sh -o reduce
    python benchmarks/profile/roofline.py reduce.csv --plot reduce.png

The CSV is that of `ncu --import REPORT --csv --page raw --print-units base`. A table, and with
--plot a picture, show for each kernel the median over its launches of

    achieved   dram__bytes.sum.per_second
    peak       dram__bytes.sum.peak_sustained * dram__cycles_elapsed.avg.per_second

The reductions do less than one operation per byte, so that the memory is the roof they are under,
not arithmetic. It needs no GPU, only the file.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ringcomm.cli.names import DTYPES

DURATION = "gpu__time_duration.sum"
NBYTES = "dram__bytes.sum"
ACHIEVED = "dram__bytes.sum.per_second"
PER_CYCLE = "dram__bytes.sum.peak_sustained"
CYCLES = "dram__cycles_elapsed.avg.per_second"
_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

# In the order of csrc/reduce/types.h, as DTYPES: ncu shows enumerators as numbers, with or without
# their type.
OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")

NO_PERMISSION = """\
ncu was not allowed to read the GPU's performance counters (ERR_NVGPUCTRPERM). One of these helps:
  * run it as root; in a container, with --cap-add=SYS_ADMIN;
  * let all users read them: put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into
    /etc/modprobe.d/nvidia-profiling.conf on the host, and reboot it (or reload the driver);
  * on a rented machine, ask the owner of the host for that.
nsys_ring.sh needs no counters and works without."""


class CsvError(Exception):
    """The file is not what is wanted; the text says why."""


@dataclass(frozen=True)
class Kernel:
    """Medians over a kernel's launches, in seconds, bytes and bytes per second."""

    name: str
    launches: int
    duration: float
    nbytes: float
    achieved: float
    peak: float


def scale(unit: str) -> float:
    """How many bytes, seconds, cycles, or per second of these, a unit of ncu's is.

    Raises:
        CsvError: an unknown unit.
    """
    total = 1.0
    for index, part in enumerate(unit.split("/")):
        match = re.fullmatch(r"([numKMGT]?)(?:bytes?|seconds?|s|cycles?|hz|Hz)", part)
        if match is None:
            raise CsvError(f"unknown unit {unit!r}; export with --print-units base")
        total *= _PREFIXES[match[1]] ** (1 if index == 0 else -1)
    return total


def short_name(kernel: str) -> str:
    """The function and its template arguments, such as reduce_kernel<float32, sum, 2>."""
    text = re.sub(r"\(\w+::DType\)(\d+)", lambda match: DTYPES[int(match[1])], kernel)
    text = re.sub(r"\(\w+::ReduceOp\)(\d+)", lambda match: OPS[int(match[1])], text)
    text = re.sub(r"\((?:\w+::)*\w+\)", "", text)  # other casts
    match = re.search(r"(\w+)(<[^()]*>)?\(", text) or re.search(r"(\w+)(<[^()]*>)?$", text)
    if match is None:
        return kernel
    return re.sub(r"(?<=_kernel<)(\d+), (\d+)", _dtype_and_op, match[0].rstrip("("))


def _dtype_and_op(numbers: re.Match[str]) -> str:
    return f"{DTYPES[int(numbers[1])]}, {OPS[int(numbers[2])]}"


def read(lines: Iterable[str]) -> list[Kernel]:
    """The kernels of a raw page, in the order of their first launches.

    Raises:
        CsvError: a column is missing, a unit or a number is unknown, or there is no kernel.
    """
    text = list(lines)
    if any("ERR_NVGPUCTRPERM" in line for line in text):
        raise CsvError(NO_PERMISSION)
    start = next((i for i, line in enumerate(text) if line.startswith('"ID"')), None)
    if start is None:
        raise CsvError('no line begins with "ID": this is no CSV of ncu --csv --page raw')
    units, *rows = csv.DictReader(text[start:])
    if missing := [
        column
        for column in ("Kernel Name", DURATION, NBYTES, ACHIEVED, PER_CYCLE, CYCLES)
        if column not in units
    ]:
        raise CsvError(f"the columns {', '.join(missing)} are missing; ncu_reduce.sh asks for them")
    launches: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        launches.setdefault(row["Kernel Name"], []).append(row)
    if not launches:
        raise CsvError("no kernel was profiled: did the name match, and was there a GPU?")
    return [_kernel(name, found, units) for name, found in launches.items()]


def _kernel(name: str, rows: list[dict[str, str]], units: dict[str, str]) -> Kernel:
    def values(column: str) -> list[float]:
        factor = scale(units[column])
        try:
            return [float(row[column].replace(",", "")) * factor for row in rows]
        except ValueError:
            raise CsvError(
                f"{column} of {name} is {rows[0][column]!r}, not a number; this GPU may lack it"
            ) from None

    peaks = [a * b for a, b in zip(values(PER_CYCLE), values(CYCLES), strict=True)]
    return Kernel(
        short_name(name),
        len(rows),
        statistics.median(values(DURATION)),
        statistics.median(values(NBYTES)),
        statistics.median(values(ACHIEVED)),
        statistics.median(peaks),
    )


def table(kernels: list[Kernel], title: str = "") -> Table:
    names = ("kernel", "launches", "time", "moved", "achieved", "peak", "share")
    result = Table(*names, title=title or None, box=None)
    for column in result.columns[1:]:
        column.justify = "right"
    for kernel in kernels:
        result.add_row(
            kernel.name,
            str(kernel.launches),
            f"{kernel.duration * 1e6:.2f} µs",
            f"{kernel.nbytes / 1e6:.2f} MB",
            f"{kernel.achieved / 1e9:.0f} GB/s",
            f"{kernel.peak / 1e9:.0f} GB/s",
            f"{kernel.achieved / kernel.peak:.0%}",
        )
    return result


def plot(kernels: list[Kernel], path: Path, title: str = "") -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.4 * len(kernels)), layout="constrained")
    axes = figure.subplots()
    names = [kernel.name for kernel in kernels]
    bars = axes.barh(names, [kernel.achieved / 1e9 for kernel in kernels], label="achieved")
    axes.bar_label(bars, [f"{k.achieved / k.peak:.0%}" for k in kernels], padding=3)
    axes.axvline(max(kernel.peak for kernel in kernels) / 1e9, ls="--", color="gray", label="peak")
    axes.invert_yaxis()
    axes.set_xlabel("device memory, GB/s")
    axes.set_title(title)
    axes.margins(x=0.12)
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=110, metadata={"Title": title})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path, help="what ncu_reduce.sh wrote")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture: .png, .svg or .pdf")
    parser.add_argument("--title", default="", help="of table and picture, such as the GPU's name")
    options = parser.parse_args()
    try:
        kernels = read(options.csv.read_text(errors="replace").splitlines())
    except (CsvError, OSError) as error:
        print(f"roofline.py: {error}", file=sys.stderr)
        return 1
    Console(soft_wrap=True, highlight=False, width=120).print(table(kernels, options.title))
    if options.plot:
        plot(kernels, options.plot, options.title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
