"""python -m ringcomm tune: measures this machine or the network to others, and has it gone by."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcomm.arguments import nbytes, number, output_file, several
from ringcomm.cli.names import TUNED
from ringcomm.usage import FailedError, UsageError

if TYPE_CHECKING:
    from ringcomm.tuning import Rule, Time, Tuning

_DESCRIPTION = """\
Measures the algorithms of collectives among ranks on this host, all in turn, and writes which one
is the fastest, by the number of ranks and the size of a call, into a file that later groups go by:
those whose ranks share this host and that name no algorithm. 16-bit and 8-bit floats are
reduced by the algorithm that rounds once all the same. Then measures what all collectives take by
that, for estimates of times, which go into the file, too. As ranks that a launcher has started on
several hosts, measures the network between them and adds it to the file of each host."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = _DESCRIPTION
    parser.add_argument(
        "collectives",
        nargs="?",
        type=several(TUNED),
        default=list(TUNED),
        metavar="COLLECTIVES",
        help=f"comma-separated, or all: {', '.join(TUNED)} (default: all)",
    )
    parser.add_argument(
        "--world-sizes",
        type=_world_sizes,
        default=None,
        metavar="N,...",
        help="numbers of ranks (default: powers of two up to the number of cores, and at least 2)",
    )
    parser.add_argument("-b", "--minbytes", type=nbytes, default="64K", help="(default: 64K)")
    parser.add_argument("-e", "--maxbytes", type=nbytes, default="16M", help="(default: 16M)")
    parser.add_argument(
        "-f", "--stepfactor", type=number(2), default=2, help="between sizes (default: 2)"
    )
    parser.add_argument(
        "-n", "--samples", type=number(1), default=9, help="of each algorithm (default: 9)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="the tuning (default: RINGCOMM_TUNING, or tuning.json in the user's cache)",
    )
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # of one world size
    parser.add_argument("--times-by", type=Path, help=argparse.SUPPRESS)  # that tuning


def _world_sizes(text: str) -> list[int]:
    return sorted({number(2)(part) for part in text.split(",")})


def run(options: argparse.Namespace) -> int:
    """Returns the exit code.

    Raises:
        UsageError: the options do not fit together, or there is no place for the file.
        FailedError: it could not be measured or written.
    """
    from ringcomm.bench.options import sizes
    from ringcomm.launch import RanksFailedError
    from ringcomm.launchers import is_rank

    if options.rows is not None:  # a rank
        from ringcomm.bench import tune

        return tune.run(options) if options.times_by is None else tune.run_times(options)
    sizes(options)
    try:
        file = _file(options)
        if is_rank():
            _across(file)
        else:
            _on_this_host(options, file)
    except (OSError, RanksFailedError) as error:
        raise FailedError(str(error)) from error
    return 0


def _on_this_host(options: argparse.Namespace, file: Path) -> None:
    from ringcomm import tuning
    from ringcomm.bench import busy

    others = busy.Others(lambda: busy.seconds_of(resource.RUSAGE_CHILDREN))
    rules = []
    times = []
    world_sizes = options.world_sizes or _powers_of_two()
    for world_size in world_sizes:
        for found in _measured(options, world_size):
            rules += [tuning.Rule(**rule) for rule in found["rules"]]
            _print(found)
    before = _before(file)
    across = before.across if before else ""
    tuning.write(file, _tuning(rules, across))
    for world_size in world_sizes:
        by = ("--times-by", str(file.resolve()))
        times += [tuning.Time(**time) for time in _measured(options, world_size, *by)]
    tuning.write(file, _tuning(rules, across, times))
    if said := others.sentence(others.load()):
        print(f"# {said}")
    print(f"# wrote {file.resolve()}")
    if file != tuning.path():
        print(f"# used where RINGCOMM_TUNING={file.resolve()}")


def _across(file: Path) -> None:
    """As one of the ranks on several hosts."""
    from ringcomm import destroy_process_group, get_rank, tuning
    from ringcomm.bench import tune_across

    link, hosts = tune_across.measure()
    text = f"{link.latency * 1e6:.1f}us:{link.bandwidth / 1e9:.6f}GB/s"
    if tune_across.is_first_of_its_host():
        before = _before(file)
        found = (list(before.rules), text, list(before.times)) if before else ([], text)
        tuning.write(file, _tuning(*found))
    if get_rank() == 0:
        print(f"# between {len(hosts)} hosts ({', '.join(hosts)}): RINGCOMM_ACROSS={text}")
        print(f"# wrote {file.resolve()}, on each host", flush=True)
    destroy_process_group()


def _file(options: argparse.Namespace) -> Path:
    """Where the tuning is to go, and can be written.

    Raises:
        UsageError: nothing says where, or what is said is no place for a file.
        OSError: it cannot be written.
    """
    from ringcomm import tuning

    file: Path | None = options.output or tuning.path()
    if file is None:
        raise UsageError(f"{tuning.why_none()}: say by --output where the tuning is to go")
    tuning.prepare(file)
    try:
        return output_file(str(file))
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from None


def _before(file: Path) -> Tuning | None:
    """What the file says of this machine already."""
    from ringcomm import tuning

    return tuning.state(file)[0]


def _powers_of_two() -> list[int]:
    most = max(2, min(len(os.sched_getaffinity(0)), 64))
    return [1 << bits for bits in range(1, most.bit_length())]


def _measured(options: argparse.Namespace, world_size: int, *more: str) -> list[dict[str, Any]]:
    """The results of a job of its own."""
    from ringcomm.launch import run_ranks

    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = ["-m", "ringcomm", *options.command_line, "--rows", str(rows), *more]
        run_ranks(command, world_size)
        found: list[dict[str, Any]] = json.loads(rows.read_text())
    return found


def _tuning(rules: list[Rule], across: str, times: Sequence[Time] = ()) -> Tuning:
    import torch

    import ringcomm
    from ringcomm.host import machine
    from ringcomm.tuning import Tuning

    made = {
        "date": datetime.date.today().isoformat(),
        "ringcomm": ringcomm.__version__,
        "torch": torch.__version__,
    }
    return Tuning(machine(), made, tuple(rules), across, tuple(times))


def _print(found: dict[str, Any]) -> None:
    """A line per size: what is chosen, and how long the others, and untuned groups, take."""
    from ringcomm.units import readable_nbytes

    rules = found["rules"]
    print(f"# {rules[0]['collective']} among {rules[0]['world_size']} ranks: time over the chosen")
    for text, times in found["seconds"].items():
        chosen = next(r["algorithm"] for r in rules if int(text) <= r["most_nbytes"])
        times["untuned"] = found["untuned"][text]
        others = [f"{name} {times[name] / times[chosen]:.2f}" for name in times if name != chosen]
        print(f"{readable_nbytes(int(text)):>9}  {chosen:<20} {', '.join(others)}", flush=True)
