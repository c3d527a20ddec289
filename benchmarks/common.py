"""What the benchmarks share: becoming several ranks, their device, options and results."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringcomm
from ringcomm import _C
from ringcomm.bench import machine, plot
from ringcomm.groups import launched
from ringcomm.launch import RanksFailedError, run_ranks
from ringcomm.usage import FailedError

TIMEOUT = timedelta(seconds=120)


def run_on_ranks(
    rank_main: Callable[[argparse.Namespace], None],
    options: argparse.Namespace,
    timeout: timedelta = TIMEOUT,
) -> int:
    """Calls rank_main(options) on every rank, in a default group of "ring".

    The ranks are those of torchrun or mpirun, or else options.nproc processes that run this script
    again. Returns the exit code.
    """
    if not launched():
        try:
            run_ranks(sys.argv, options.nproc)
        except RanksFailedError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    torch.set_num_threads(1)
    ringcomm.init(timeout)
    rank_main(options)
    ringcomm.barrier()
    ringcomm.destroy_process_group()
    return 0


def check_picture(parser: argparse.ArgumentParser, output: Path | None) -> None:
    """Ends the program, before hours of measuring, if OUTPUT.png could not be drawn after them."""
    if output:
        try:
            plot.check(output.with_suffix(".png"))
        except FailedError as error:
            parser.error(str(error))


def tools() -> Any:
    """ringcomm._C.testing, which has the functions that only benchmarks and tests call."""
    if not hasattr(_C, "testing"):
        raise SystemExit(
            "This benchmark calls functions that only some builds have. Build ringcomm again: "
            "RINGCOMM_WITH_TESTS=1 python -m pip install -e ."
        )
    return _C.testing


def own_device(backends: list[str]) -> torch.device:
    """This rank's GPU if NCCL is among the backends, else the CPU."""
    if "nccl" not in backends:
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def check_backends(parser: argparse.ArgumentParser, backends: list[str]) -> None:
    """Ends the program with a clear error if there is no GPU for NCCL."""
    if "nccl" in backends and not torch.cuda.is_available():
        parser.error("the backend nccl needs a GPU per rank, and torch finds none")


def write_csv(
    path: Path,
    fields: Sequence[str],
    rows: Iterable[Mapping[str, object]],
    append: bool = False,
) -> None:
    """Writes the rows, or adds them to those that are there; the first line names the fields."""
    append = append and path.exists()
    with path.open("a" if append else "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields)
        if not append:
            writer.writeheader()
        writer.writerows(rows)


def write_results(
    output: Path,
    kind: type,
    rows: Sequence[Any],
    header: Mapping[str, str],
    note: str,
    tables: str,
) -> None:
    """OUTPUT.csv, .json and .md of what was measured.

    Args:
        kind: the dataclass of the rows.
        rows: perhaps none.
        header: what was measured where.
        note: says what the tables show.
        tables: of the rows, in markdown.
    """
    records = [asdict(row) for row in rows]
    write_csv(output.with_suffix(".csv"), [field.name for field in fields(kind)], records)
    document = json.dumps({"header": header, "rows": records}, indent=1)
    output.with_suffix(".json").write_text(document + "\n")
    lines = [f"{name}: {value}  " for name, value in header.items()]
    text = "\n".join([*lines, "", note, "", tables])
    output.with_suffix(".md").write_text(text, encoding="utf-8")


def report(output: Path | None, kind: type, rows: Sequence[Any], note: str, tables: str) -> None:
    """Prints the tables, and writes what was measured here and now on the CPUs, if it is to go to
    `output`; the rest as `write_results` has it."""
    print(tables, end="")
    if output is None:
        return
    write_results(output, kind, rows, header(), note, tables)


def header() -> dict[str, str]:
    """The date and the machine of what is measured on the CPUs."""
    date = datetime.now(timezone.utc).date().isoformat()
    return {"date": date, **machine.describe(torch.device("cpu"), [])}


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names in their order, beginning elsewhere in each round."""
    at = by % max(1, len(names))
    return [*names[at:], *names[:at]]


def listed(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Converts what commas separate."""
    return lambda text: [convert(each) for each in text.split(",")]
