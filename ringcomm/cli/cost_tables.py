"""What `python -m ringcomm cost` shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringcomm.cli.whole import print_folded
from ringcomm.cost import (
    BFLOAT16,
    FLOAT32,
    Layout,
    Machine,
    Memory,
    Overlap,
    Transformer,
    overlaps,
    pipeline_bubble_fraction,
    training_memory,
)
from ringcomm.units import readable_seconds


def show(model: Transformer, name: str, machine: Machine, layout: Layout, recompute: str) -> None:
    """Prints the tables; `name` is the machine's."""
    found = overlaps(model, machine, layout)
    console = Console()
    active = f" ({model.active_params / 1e9:.3g} active)" if model.experts else ""
    console.print(
        f"{model.num_params / 1e9:.3g} billion parameters{active}, {layout.world_size} ranks, "
        f"{layout.num_tokens:,} tokens per replica and micro-batch\n"
        f"{name}: {machine.flops / 1e9:,.0f} Gflop/s and {machine.memory / 1e9:.3g} GB "
        f"per rank, hosts of {machine.ranks_per_host}, {machine.inside.bandwidth / 1e9:.3g} GB/s "
        f"inside, {machine.across.bandwidth / 1e9:.3g} GB/s across",
        soft_wrap=True,
        highlight=False,
    )
    print_folded(_memory_table(_memory(model, machine, layout, recompute), machine))
    if found:
        print_folded(_overlap_table(found))
    if model.experts and layout.tp > 1:
        console.print("experts: each is divided over the tensor-parallel ranks", highlight=False)
    if layout.pp > 1:
        bubble = pipeline_bubble_fraction(layout.pp, layout.micro_batches)
        console.print(f"pipeline: stages idle {bubble:.1%} of a step", highlight=False)


def as_json(model: Transformer, machine: Machine, layout: Layout, recompute: str) -> dict[str, Any]:
    """The same in bytes, seconds and operations per second."""
    memory = _memory(model, machine, layout, recompute)
    return {
        "model": dataclasses.asdict(model)
        | {"num_params": model.num_params, "active_params": model.active_params},
        "machine": dataclasses.asdict(machine),
        "layout": dataclasses.asdict(layout) | {"world_size": layout.world_size},
        "memory": dataclasses.asdict(memory)
        | {"total": memory.total, "fits": memory.total <= machine.memory},
        "overlaps": [
            dataclasses.asdict(one) | {"ratio": one.ratio, "hidden": one.hidden}
            for one in overlaps(model, machine, layout)
        ],
        "pipeline_bubble": pipeline_bubble_fraction(layout.pp, layout.micro_batches),
    }


def _memory(model: Transformer, machine: Machine, layout: Layout, recompute: str) -> Memory:
    precision = BFLOAT16 if machine.element_nbytes == 2 else FLOAT32
    return training_memory(model, layout, precision, recompute)


def _memory_table(memory: Memory, machine: Machine) -> Table:
    table = Table(
        title=f"\nmemory of the fullest rank, Adam and {8 * machine.element_nbytes}-bit floats",
        box=None,
    )
    for name in (*(part.name for part in dataclasses.fields(memory)), "together"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fits")
    cells = [f"{getattr(memory, part.name) / 1e9:.1f} GB" for part in dataclasses.fields(memory)]
    fits = memory.total <= machine.memory
    table.add_row(*cells, f"{memory.total / 1e9:.1f} GB", _answer(fits))
    return table


def _overlap_table(found: Sequence[Overlap]) -> Table:
    table = Table(
        title="\ncommunication and the computation to hide it behind, both at peak rates",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("beside", "collective", "hosts"):
        table.add_column(name)
    for name in ("data", "sent", "computed", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("hidden")
    bounds = (" ".join(one.crossover.split()[:2]) for one in found)  # such as ≥ 14,835
    table.add_column("crossover", min_width=max(map(len, bounds)))
    for one in found:
        table.add_row(
            one.name,
            one.collective,
            "across" if one.crosses_hosts else "inside",
            _readable(one.nbytes),
            readable_seconds(one.communication),
            readable_seconds(one.computation),
            f"{one.ratio:.2f}",
            _answer(one.hidden),
            one.crossover,
        )
    return table


def _readable(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes < 1e9 else f"{nbytes / 1e9:.2f} GB"


def _answer(yes: bool) -> str:
    return "[green]yes[/]" if yes else "[bold red]no[/]"


def _label(one: Overlap) -> str:
    return f"{one.name}: {one.collective}"


def draw(path: Path, title: str, model: Transformer, machine: Machine, layout: Layout) -> None:
    """The ratio of each communication over tokens: of a shorter sequence, then of more of them.

    What has the same ratios everywhere shares a line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    shorter = [layout.seq_len >> i for i in range(5, 0, -1) if layout.seq_len >> i]
    layouts = [dataclasses.replace(layout, micro_batch=1, seq_len=length) for length in shorter]
    layouts += [dataclasses.replace(layout, micro_batch=1 << i) for i in range(7)]
    lines = [overlaps(model, machine, one) for one in layouts]
    tokens = [one.num_tokens for one in layouts]
    labels: dict[tuple[str, ...], list[str]] = {}
    for series in zip(*lines, strict=True):
        labels.setdefault(tuple(f"{one.ratio:.6g}" for one in series), []).append(_label(series[0]))
    for ratios, names in labels.items():
        axes.plot(tokens, list(map(float, ratios)), marker="o", ms=3, label="\n".join(names))
    axes.set_title(title, fontsize=9)
    axes.axhline(1, color="gray", ls="--", label="as long as the computation: hidden below")
    axes.axvline(layout.num_tokens, color="gray", ls=":", label="this layout")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens per replica and micro-batch")
    axes.set_ylabel("communication / computation")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
