"""python -m ringcomm explain --choose: how the calls of any group go, by their bytes."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from ringcomm.cli.names import DTYPES, REPRODUCIBLE, TUNED
from ringcomm.cli.whole import print_whole
from ringcomm.usage import UsageError

if TYPE_CHECKING:
    from ringcomm.chosen import SizeClass
    from ringcomm.plan import Link
    from ringcomm.tuning import Tuning

EXECUTORS = ("shm", "messages", "fused")
ENGINES = ("ucx", "gloo")
_OPTIONS = ("dtype", "executor", "links", "reproducible", "tuning")
# What the command has options for besides, and what these are of.
_OF_PICTURES = ("beside", "nbytes", "link", "nics_per_host", "slice", "root", "slices", "output")
_OF_HOSTS = ("across", "links")
# How the paths of a size class are called, by executor.
_PATHS = {
    "shm": {"with the call": "with the call", "plan": "plan"},
    "messages": {"plan": "messages"},
    "fused": {"with the call": "eager kernel", "plan": "kernel"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --choose and what belongs to it."""
    group = parser.add_argument_group(
        "how calls go",
        "A table of paths and algorithms by bytes. The groups of a job choose by the same "
        "function, and by the same tuning file.",
    )
    group.add_argument("--choose", action="store_true", help=f"print the table: {', '.join(TUNED)}")
    group.add_argument("--dtype", choices=DTYPES, metavar="DTYPE", help="(default: float32)")
    group.add_argument(
        "--executor",
        choices=EXECUTORS,
        help="shm, for CPU tensors; on GPUs messages or fused, as RINGCOMM_EXECUTOR (default: shm)",
    )
    group.add_argument(
        "--links", choices=ENGINES, help="what carries bytes between hosts (default: ucx)"
    )
    group.add_argument(
        "--reproducible", choices=REPRODUCIBLE, help="as ringcomm.Options has it (default: off)"
    )
    group.add_argument(
        "--tuning",
        type=Path,
        metavar="FILE",
        help="what `tune` wrote, or off (default: the file that a job here uses)",
    )


def refuse_without(options: argparse.Namespace) -> None:
    """Raises ValueError if an option is given that belongs to --choose."""
    for name in _OPTIONS:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is of --choose, which is not given")


def run(options: argparse.Namespace) -> None:
    """Prints the table.

    Raises:
        ValueError: the options do not fit together.
    """
    from ringcomm.links import ETHERNET
    from ringcomm.plan import Link

    _check(options)
    dtype, executor = options.dtype or "float32", options.executor or "shm"
    host_of = _host_of(options)
    tuned_by, tuning = _tuning(options)
    across = options.across or Link.parse((tuning and tuning.across) or ETHERNET)
    classes = _size_classes(options, dtype, executor, host_of, across, tuning)
    num_hosts = len(set(host_of))
    if options.json:
        document = {
            "collective": options.collective,
            "dtype": dtype,
            "executor": executor,
            "world_size": options.world_size,
            "num_hosts": num_hosts,
            "tuned_by": tuned_by,
            "size_classes": [dataclasses.asdict(one) for one in classes],
        }
        print(json.dumps(document))
        return
    hosts = "1 host" if num_hosts == 1 else f"{num_hosts} hosts, {across.text()} between them"
    ranks = "1 rank" if options.world_size == 1 else f"{options.world_size} ranks"
    print(f"{options.collective} of {dtype} by {executor}\n{ranks} on {hosts}")
    print(f"tuning: {tuned_by}\n" if tuned_by else "")
    print_whole(_table(classes, executor))
    print("\nBytes are those of the larger of a rank's two buffers.")
    if classes[0].zero_copy_from is not None:
        print("Zero copy: if the tensors of all ranks lie in shared memory.")


def _check(options: argparse.Namespace) -> None:
    if options.timeline:
        raise UsageError("--timeline draws a plan, got --choose, too")
    for name in _OF_PICTURES:
        value = getattr(options, name)
        if value is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} has no meaning with --choose, got {value}"
            )
    if options.collective not in TUNED:
        raise UsageError(f"--choose is for {', '.join(TUNED)}, got {options.collective}")
    for name in _OF_HOSTS:
        if getattr(options, name) is not None and options.ranks_per_host is None:
            raise UsageError(f"--{name} is of several hosts, and there is no --ranks-per-host")


def _host_of(options: argparse.Namespace) -> list[int]:
    from ringcomm.plan.algorithms import host_of

    return host_of(options.ranks_per_host or options.world_size, options.world_size)


def _tuning(options: argparse.Namespace) -> tuple[str, Tuning | None]:
    """The file that the group goes by, and what it says; "" and None without one.

    Raises:
        OSError, ValueError: as `ringcomm.tuning.read` does.
    """
    from ringcomm import tuning

    if options.tuning is None:
        return tuning.used_file(), tuning.used()
    name = str(options.tuning)
    return ("", None) if name == "off" else (name, tuning.read(options.tuning))


def _size_classes(
    options: argparse.Namespace,
    dtype: str,
    executor: str,
    host_of: list[int],
    across: Link,
    tuning: Tuning | None,
) -> list[SizeClass]:
    from ringcomm._C import plan as _plan
    from ringcomm.chosen import SizeClass
    from ringcomm.plan.plans import COLLECTIVES

    found = _plan.size_classes(
        COLLECTIVES[options.collective],
        dtype,
        executor,
        host_of,
        _plan.Link(across.latency, across.overhead, across.bandwidth),
        options.links or "ucx",
        options.algorithm or "auto",
        tuning.core_rules() if tuning else [],
        options.reproducible not in (None, "off"),
    )
    return [SizeClass(**one) for one in found]


def _table(classes: list[SizeClass], executor: str) -> Table:
    has_zero_copy = classes[0].zero_copy_from is not None
    table = Table("up to", "path", "algorithm", *["zero copy"] * has_zero_copy, box=None)
    table.columns[0].justify = "right"
    below = 0
    for one in classes:
        cells = [one.up_to, _PATHS[executor][one.path], one.algorithm]
        if one.zero_copy_from is not None:
            cells.append(_zero_copy(one, below))
        table.add_row(*cells)
        below = one.most_nbytes or 0
    return table


def _zero_copy(one: SizeClass, below: int) -> str:
    """What of a class of more than `below` bytes is zero copy."""
    assert one.zero_copy_from is not None
    if one.zero_copy_from <= below + 1:
        return "yes"
    begins = one.most_nbytes is None or one.zero_copy_from <= one.most_nbytes
    return f"from {one.copies_up_to}" if begins else "no"
