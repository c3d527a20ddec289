"""One rank of the benchmark."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress

import ringcomm
from ringcomm.bench import machine, plot, report
from ringcomm.bench.cases import COLLECTIVES, Case, case_of
from ringcomm.bench.contenders import make_contenders
from ringcomm.bench.copies import copy_bandwidth
from ringcomm.bench.options import DTYPES, check, device_type, sizes
from ringcomm.bench.sampling import measure


def run(options: argparse.Namespace) -> int:
    """Measures, and on rank 0 reports. Returns 1 if a result was wrong, else 0."""
    torch.set_num_threads(1)
    timeout = timedelta(seconds=options.timeout)
    device = _device(options)
    ringcomm.init(timeout)
    world_size = dist.get_world_size()
    check(options, world_size)
    contenders = make_contenders(options.backends, options.algorithms, timeout)
    speaks = dist.get_rank() == 0
    header = machine.describe(device, options.backends)
    width = max(len("backend"), *(len(contender.name) for contender in contenders))
    table = report.Table(width, options.spread)
    rows: list[report.Row] = []
    say = Console(quiet=not speaks, soft_wrap=True, highlight=False, markup=False).print
    for name, value in header.items():
        say(f"# {name:<9}{value}")
    say(f"# ranks    {world_size}, {device.type} tensors")
    say(f"# samples  {options.iters} of each, in turn: medians; ratios to {contenders[0].name}")

    # Its bar is on the terminal that errors go to, so that it is never in a file of results.
    progress = Progress(
        console=Console(stderr=True), transient=True, disable=not (speaks and sys.stderr.isatty())
    )
    cases = list(_cases(options, dist.get_rank(), world_size, device))
    turns = len(cases) * (options.iters + options.warmup_iters)
    previous, left_out = "", dict[tuple[str, str], str]()
    with progress:
        task = progress.add_task("measuring", total=turns)
        for case in cases:
            if case.collective.name != previous:
                previous = case.collective.name
                say(f"#\n# {previous}")
                for line in table.heading():
                    say(line)
            results, reasons = measure(
                contenders,
                case,
                samples=options.iters,
                warmups=options.warmup_iters,
                checks=options.check,
                graph_launches=options.cudagraph,
                after_turn=lambda: progress.advance(task),
            )
            for contender in contenders:
                both = [
                    report.row_of(case, contender.name, in_place, results[key])
                    if (key := (contender.name, in_place)) in results
                    else None
                    for in_place in (False, True)
                ]
                rows += [row for row in both if row is not None]
                if any(both):
                    say(table.line(*both))
                else:
                    what = f"{contender.name}, {case.collective.name} {case.op} {case.dtype}"
                    left_out[what, reasons[contender.name]] = ""
    for what, reason in left_out:
        say(f"# not measured: {what}: {reason}")
    copy_rates = {}
    if options.plot:
        nbytes = sorted({case.nbytes for case in cases if case.nbytes > 0})
        copy_rates = {size: copy_bandwidth(size, device) for size in nbytes}
    wrong = sum(row.wrong for row in rows)
    say(f"# wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    if speaks:
        _write(options, header, rows, copy_rates)
    ringcomm.barrier()
    ringcomm.destroy_process_group()
    return 1 if wrong else 0


def _device(options: argparse.Namespace) -> torch.device:
    if device_type(options) == "cpu":
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _cases(
    options: argparse.Namespace, rank: int, world_size: int, device: torch.device
) -> Iterator[Case]:
    for name in options.collectives:
        collective = COLLECTIVES[name]
        for dtype, op in itertools.product(
            options.datatype, options.op if collective.reduces else ["none"]
        ):
            for nbytes in sizes(options) if name != "barrier" else [0]:
                torch_dtype = getattr(torch, DTYPES[dtype])
                yield case_of(name, nbytes, torch_dtype, op, options.root, rank, world_size, device)


def _write(
    options: argparse.Namespace,
    header: dict[str, str],
    rows: list[report.Row],
    copy_rates: dict[int, float],
) -> None:
    if options.csv:
        report.write_csv(options.csv, rows)
    if options.output_file:
        report.write_json(options.output_file, header, rows)
    if options.plot:
        plot.write(options.plot, rows, copy_rates, header.get("GPU", header["machine"]))
