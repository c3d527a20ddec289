"""One rank of the benchmark."""

from __future__ import annotations

import argparse
import itertools
import resource
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress

import ringcomm
from ringcomm.bench import busy, machine, plot, report
from ringcomm.bench.cases import COLLECTIVES, Case, case_of
from ringcomm.bench.contenders import make_contenders
from ringcomm.bench.copies import copy_bandwidth
from ringcomm.bench.options import DTYPES, PLACEMENTS, check, device_type, sizes
from ringcomm.bench.sampling import Result, measure
from ringcomm.environment import MOST_RANKS, integer


def run(options: argparse.Namespace) -> int:
    """Measures, and on rank 0 reports. Returns 1 if a result was wrong, else 0.

    Raises:
        UsageError: the options do not fit the group or the machine.
        RuntimeError: a backend cannot be had, or failed on some ranks.
    """
    torch.set_num_threads(1)
    timeout = timedelta(seconds=options.timeout)
    device = _device(options)
    ringcomm.init(timeout)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    check(options, world_size)
    contenders = make_contenders(
        options.backends, options.algorithms, timeout, options.ranks_per_host
    )
    header = machine.describe(device, options.backends)
    header["ranks"] = f"{world_size}, {device.type} tensors"
    header["samples"] = f"{options.iters} of each, in turn: medians; ratios to {contenders[0].name}"
    cases = list(_cases(options, rank, world_size, device))
    others = busy.Others(_seconds_on_host)

    console = Console(quiet=rank != 0, soft_wrap=True, highlight=False, markup=False)
    output = _Output(console, [contender.name for contender in contenders], options.spread)
    output.begin(header)
    shows_bar = rank == 0 and console.is_terminal and not console.is_dumb_terminal
    # The bar moves between cases only: a thread that moved it would take time from the samples.
    with Progress(
        console=console, transient=True, auto_refresh=False, disable=not shows_bar
    ) as progress:
        for case in progress.track(cases, description="measuring"):
            results, left_out = measure(
                contenders,
                case,
                samples=options.iters,
                warmups=options.warmup_iters,
                checks=options.check,
                graph_launches=options.cudagraph,
                placements=PLACEMENTS[options.placement],
            )
            output.add(case, results, left_out)
    load = _highest(others.load())
    header["others"] = f"kept {load:.2f} cores busy meanwhile"
    copy_rates = {}
    if options.plot:
        nbytes = sorted({case.nbytes for case in cases if case.nbytes > 0})
        copy_rates = {size: copy_bandwidth(size, device) for size in nbytes}
    wrong = output.end(others.sentence(load))
    if rank == 0:
        _write(options, header, output.rows, copy_rates)
    ringcomm.barrier()
    ringcomm.destroy_process_group()
    return 1 if wrong else 0


class _Output:
    """The lines that rank 0 prints, each as soon as it is known, and the rows for the files."""

    def __init__(self, console: Console, contenders: list[str], spread: bool) -> None:
        self.rows: list[report.Row] = []
        self._contenders = contenders
        self._table = report.Table(contenders, spread)
        self._say = console.print
        self._collective = ""
        self._left_out: dict[str, str] = {}

    def begin(self, header: dict[str, str]) -> None:
        for name, value in header.items():
            self._say(f"# {name:<9}{value}")

    def add(
        self, case: Case, results: dict[tuple[str, bool], Result], left_out: dict[str, str]
    ) -> None:
        if case.collective.name != self._collective:
            self._collective = case.collective.name
            for line in ("#", f"# {self._collective}", *self._table.heading()):
                self._say(line)
        for name in self._contenders:
            rows = {
                in_place: report.row_of(case, name, in_place, results[name, in_place])
                for in_place in (False, True)
                if (name, in_place) in results
            }
            if rows:
                self._say(self._table.line(rows.get(False), rows.get(True)))
                self.rows += rows.values()
            else:
                what = f"{report.label(name)}, {case.collective.name} {case.op} {case.dtype}"
                self._left_out[what] = left_out[name]

    def end(self, note: str) -> int:
        """Returns how many elements were wrong. The note is about all that was measured."""
        for what, reason in self._left_out.items():
            self._say(f"# not measured: {what}: {reason}")
        if note:
            self._say(f"# {note}")
        wrong = sum(row.wrong for row in self.rows)
        self._say(f"# wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}")
        return wrong


def _seconds_on_host() -> float:
    """The CPU time so far of all ranks on this one's host; all ranks call it."""
    topology = ringcomm.topology()
    seconds = torch.zeros(len(topology.hosts), dtype=torch.float64)
    seconds[topology.own] = busy.seconds_of(resource.RUSAGE_SELF)
    ringcomm.all_reduce(seconds)
    return float(seconds[topology.own])


def _highest(value: float) -> float:
    """The highest value of all ranks, all of which call it."""
    highest = torch.tensor(value, dtype=torch.float64)
    ringcomm.all_reduce(highest, ringcomm.ReduceOp.MAX)
    return float(highest)


def _device(options: argparse.Namespace) -> torch.device:
    if device_type(options) == "cpu":
        return torch.device("cpu")
    index = integer("LOCAL_RANK", 0, 0, MOST_RANKS) % torch.cuda.device_count()
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
    if options.rows:
        report.write_json(options.rows, header, rows)
    if options.csv:
        report.write_csv(options.csv, rows)
    if options.output_file:
        report.write_json(options.output_file, header, rows)
    if options.plot:
        plot.write(options.plot, rows, copy_rates, header.get("GPU", header["machine"]))
    for path in filter(None, (options.csv, options.output_file, options.plot)):
        print(f"# wrote {path.resolve()}")
