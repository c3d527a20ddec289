"""python -m ringcomm cost: what training a transformer costs, and what of it is hidden."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ringcomm.arguments import number
from ringcomm.bench import plot
from ringcomm.cli.whole import print_folded
from ringcomm.cost import (
    BFLOAT16,
    FLOAT32,
    MACHINES,
    MODELS,
    Layout,
    Machine,
    Memory,
    Overlap,
    Transformer,
    from_config,
    overlaps,
    pipeline_bubble_fraction,
    training_memory,
)
from ringcomm.cost.this_machine import this_machine
from ringcomm.launch import RanksFailedError
from ringcomm.units import readable_seconds

_THIS = "this"


def _model(text: str) -> Transformer:
    if text in MODELS:
        return MODELS[text]
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(
            f"must be one of {', '.join(MODELS)} or a model's config.json, got {text!r}"
        )
    try:
        return from_config(path)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Memory, and communication against the computation beside it, of one step of training "
        "with a parallel layout. Machines are data sheets' peaks, but `this`, which is measured "
        "when the command runs (CPU, float32)."
    )
    parser.add_argument(
        "--model",
        type=_model,
        default="llama-3.1-8b",
        metavar="MODEL",
        help=f"{', '.join(MODELS)}, or the config.json of a model with Llama's names "
        "(default: llama-3.1-8b)",
    )
    parser.add_argument(
        "--machine",
        choices=(*MACHINES, _THIS),
        default="h100-nvlink",
        help="(default: h100-nvlink)",
    )
    for name, meaning in (
        ("dp", "data-parallel replicas"),
        ("tp", "tensor-parallel ranks"),
        ("pp", "pipeline stages"),
    ):
        parser.add_argument(
            f"--{name}", type=number(1), default=1, help=f"{meaning} (default: %(default)s)"
        )
    parser.add_argument(
        "--zero", type=int, choices=range(4), default=0, help="ZeRO's stage; 3 is FSDP (default: 0)"
    )
    parser.add_argument(
        "--seq-len", type=number(1), default=4096, help="tokens of a sequence (default: 4096)"
    )
    parser.add_argument(
        "--micro-batch", type=number(1), default=1, help="sequences, per replica (default: 1)"
    )
    parser.add_argument(
        "--micro-batches", type=number(1), default=1, help="per replica and step (default: 1)"
    )
    parser.add_argument(
        "--recompute",
        choices=("none", "selective", "full"),
        default="selective",
        help="activations in the backward pass; selective: attention's scores, as FlashAttention "
        "does (default: selective)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="the ratios over the tokens of a micro-batch, as .png, .svg or .pdf",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the tables, and draws the ratios if asked. Returns the exit code."""
    try:
        if options.plot:
            plot.check(options.plot)
        machine = _machine(options.machine)
    except (plot.PlotError, RanksFailedError) as error:
        print(error, file=sys.stderr)
        return 2
    layout = Layout(
        options.dp,
        options.tp,
        options.pp,
        options.zero,
        options.seq_len,
        options.micro_batch,
        options.micro_batches,
    )
    model: Transformer = options.model
    found = overlaps(model, machine, layout)
    console = Console()
    console.print(
        f"{model.num_params / 1e9:.3g} billion parameters, {layout.world_size} ranks, "
        f"{layout.num_tokens:,} tokens per replica and micro-batch\n"
        f"{options.machine}: {machine.flops / 1e9:,.0f} Gflop/s and {machine.memory / 1e9:.3g} GB "
        f"per rank, hosts of {machine.ranks_per_host}, {machine.inside.bandwidth / 1e9:.3g} GB/s "
        f"inside, {machine.across.bandwidth / 1e9:.3g} GB/s across",
        soft_wrap=True,
        highlight=False,
    )
    precision = BFLOAT16 if machine.element_nbytes == 2 else FLOAT32
    memory = training_memory(model, layout, precision, options.recompute)
    print_folded(_memory_table(memory, machine))
    if found:
        print_folded(_overlap_table(found))
    if layout.pp > 1:
        bubble = pipeline_bubble_fraction(layout.pp, layout.micro_batches)
        console.print(f"pipeline: stages idle {bubble:.1%} of a step", highlight=False)
    if options.plot:
        _draw(options.plot, model, machine, layout)
        print(f"wrote {options.plot.resolve()}")
    return 0


def _machine(name: str) -> Machine:
    if name != _THIS:
        return MACHINES[name]
    return this_machine()


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


def _draw(path: Path, model: Transformer, machine: Machine, layout: Layout) -> None:
    """The ratio of each communication over tokens: of a shorter sequence, then of more of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    shorter = [layout.seq_len >> i for i in range(5, 0, -1) if layout.seq_len >> i]
    layouts = [dataclasses.replace(layout, micro_batch=1, seq_len=length) for length in shorter]
    layouts += [dataclasses.replace(layout, micro_batch=1 << i) for i in range(7)]
    lines = [overlaps(model, machine, one) for one in layouts]
    tokens = [one.num_tokens for one in layouts]
    for series in zip(*lines, strict=True):
        axes.plot(tokens, [one.ratio for one in series], marker="o", ms=3, label=_label(series[0]))
    axes.axhline(1, color="gray", ls="--", label="as long as the computation: hidden below")
    axes.axvline(layout.num_tokens, color="gray", ls=":", label="this layout")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens per replica and micro-batch")
    axes.set_ylabel("communication / computation")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
