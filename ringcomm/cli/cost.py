"""python -m ringcomm cost: what training a transformer costs, and what of it is hidden."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ringcomm.arguments import number, output_file
from ringcomm.cli.names import MACHINES, MODELS
from ringcomm.usage import FailedError, did_you_mean, refusing

_THIS = "this"


def _model(text: str) -> str:
    if text not in MODELS and not Path(text).is_file():
        raise argparse.ArgumentTypeError(
            f"must be one of {', '.join(MODELS)} or a model's config.json, got {text!r}"
            + did_you_mean(text, MODELS)
        )
    return text


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
        help=f"{', '.join(MODELS)}, or the config.json of a Hugging Face model "
        "(default: llama-3.1-8b)",
    )
    parser.add_argument(
        "--machine",
        choices=(*MACHINES, _THIS),
        default="h100-nvlink",
        metavar="MACHINE",
        help=f"{', '.join(MACHINES)}, or {_THIS} (default: h100-nvlink)",
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
        type=output_file,
        metavar="FILE",
        help="the ratios over the tokens of a micro-batch, as .png, .svg or .pdf",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="for machines: one JSON object, in bytes, seconds and operations per second",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the tables, and draws the ratios if asked. Returns the exit code."""
    from ringcomm import cost
    from ringcomm.bench import plot
    from ringcomm.cli import cost_tables
    from ringcomm.cost.this_machine import this_machine
    from ringcomm.launch import RanksFailedError

    layout = cost.Layout(
        options.dp,
        options.tp,
        options.pp,
        options.zero,
        options.seq_len,
        options.micro_batch,
        options.micro_batches,
    )
    if options.plot:
        plot.check(options.plot)
    try:
        with refusing():
            model = cost.MODELS.get(options.model) or cost.from_config(Path(options.model))
            model.over(layout.tp)  # An error before the machine is measured.
        machine = this_machine() if options.machine == _THIS else cost.MACHINES[options.machine]
    except (OSError, RanksFailedError) as error:
        raise FailedError(str(error)) from error
    if options.json:
        print(json.dumps(cost_tables.as_json(model, machine, layout, options.recompute)))
    else:
        cost_tables.show(model, options.machine, machine, layout, options.recompute)
    if options.plot:
        title = (
            f"{options.model} on {options.machine}: "
            f"dp {layout.dp}, tp {layout.tp}, pp {layout.pp}, ZeRO {layout.zero}, "
            f"sequences of {layout.seq_len:,} tokens"
        )
        cost_tables.draw(options.plot, title, model, machine, layout)
        if not options.json:
            print(f"wrote {options.plot.resolve()}")
    return 0
