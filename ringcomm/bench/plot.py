"""busbw and time over size, a line per backend, and one for a copy of what a rank receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ringcomm.bench.cases import COLLECTIVES
from ringcomm.bench.report import Row, label
from ringcomm.usage import FailedError, UsageError


def check(path: Path) -> None:
    """To be called before hours of measuring.

    Raises:
        FailedError: matplotlib is missing.
        UsageError: it cannot write such a file.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError as error:
        raise FailedError(
            f"a picture needs matplotlib, which is not installed: pip install matplotlib ({error})"
        ) from error
    suffix = path.suffix.removeprefix(".").lower()
    known = FigureCanvasBase.get_supported_filetypes()
    if suffix not in known:
        raise UsageError(f"--plot must end in one of .{', .'.join(sorted(known))}, got {path}")


def write(path: Path, rows: Sequence[Row], copy_rates: Mapping[int, float], title: str) -> None:
    """Draws the in-place times, or where a collective has none, the others.

    Args:
        copy_rates: bytes that each rank copies per second, by size; without any, no line shows it.
        title: a second line for it, such as the machine.
    """
    from matplotlib.figure import Figure

    collectives = list(dict.fromkeys(row.collective for row in rows if row.size > 0))
    figure = Figure(figsize=(8.8, 3.6 * len(collectives)), layout="constrained")
    axes = figure.subplots(len(collectives), 2, squeeze=False)
    for name, (bandwidth, latency) in zip(collectives, axes, strict=True):
        chosen = _chosen([row for row in rows if row.collective == name])
        for backend, line in _lines(chosen).items():
            sizes = [row.size for row in line]
            bandwidth.plot(sizes, [row.busbw for row in line], marker="o", ms=4, label=backend)
            latency.plot(sizes, [row.time * 1e6 for row in line], marker="o", ms=4, label=backend)
        sizes = sorted({row.size for row in chosen} & set(copy_rates))
        if sizes:
            rates = [copy_rates[size] for size in sizes]
            factor = COLLECTIVES[name].factor(chosen[0].world_size)
            limit = {"ls": "--", "color": "gray", "label": "one copy of what a rank receives"}
            bandwidth.plot(sizes, [rate / 1e9 for rate in rates], **limit)
            times = [size * factor / rate * 1e6 for size, rate in zip(sizes, rates, strict=True)]
            latency.plot(sizes, times, **limit)
        for one, unit in ((bandwidth, "busbw, GB/s"), (latency, "time, µs")):
            one.set_xscale("log", base=2)
            one.set_yscale("log")
            one.set_xlabel("size, bytes")
            one.set_ylabel(unit)
            one.xaxis.set_major_formatter(lambda size, _: readable(int(size)))
            one.grid(alpha=0.3)
            one.set_title(f"{name}, {chosen[0].world_size} ranks")
        bandwidth.legend(fontsize="small")
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=110)


def readable(nbytes: int) -> str:
    """Such as 64K or 1M, or the plain number."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes and nbytes % factor == 0:
            return f"{nbytes // factor}{unit}"
    return str(nbytes)


def _chosen(rows: Sequence[Row]) -> list[Row]:
    in_place = [row for row in rows if row.in_place]
    return in_place or list(rows)


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By backend, and by dtype and op where there are several."""
    several = len({(row.type, row.redop) for row in rows}) > 1
    lines: dict[str, list[Row]] = {}
    for row in rows:
        line = label(row.backend)
        if several:
            line += f", {row.type} {row.redop}"
        lines.setdefault(line, []).append(row)
    return lines
