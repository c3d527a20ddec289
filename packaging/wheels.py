"""Makes one wheel of ringcomm for all supported torches, and tries it in fresh environments.

    python packaging/wheels.py all

makes a source distribution, builds the extension from it for each torch, in a fresh virtual
environment with that torch, packs all builds into one wheel for this Python, and installs it beside
each torch in another fresh environment. There it says its version, passes `doctor` and adds numbers
of two ranks. The parts can be run by themselves:

    python packaging/wheels.py sdist
    python packaging/wheels.py build --torch 2.15.0
    python packaging/wheels.py pack
    python packaging/wheels.py try --torch 2.15.0

A torch is a version that pip can install, or VERSION=FOLDER, a site-packages folder that has it,
which is then imported from there. The default is the newest patch of each supported torch. All goes
to dist/ (--out): the distributions, builds/ with a folder for each torch, wheels.md and wheels.json
with a row for each torch, and logs/ of what was run. A failure is a row, too, and the exit status
is 1 then.

For a torch with CUDA there are two builds: the one without CUDA is for torches that have none, or
another one. nvcc of torch's CUDA is taken from this machine, or from NVIDIA's wheels. The wheel's
tag says how old a C library it runs with: that of this machine, as far as it is used.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fresh_environment import StepError, Torch
from make_wheel import build, pack, python_tag, sdist
from try_wheel import try_wheel

TORCHES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
COLUMNS = {
    "torch": "torch",
    "python": "Python",
    "device": "used",
    "build_seconds": "built in s",
    "install_seconds": "installed in s",
    "sum_seconds": "sum of two ranks in s",
    "result": "result",
    "date": "date",
}


def record(out: Path, row: dict[str, object]) -> None:
    """Puts a row into wheels.json and wheels.md, or adds to the one for this torch and Python."""
    kept = out / "wheels.json"
    rows = json.loads(kept.read_text()) if kept.exists() else []
    same = ("for_torch", "for_python")
    others = [old for old in rows if any(old.get(name) != row.get(name) for name in same)]
    former = next((old for old in rows if old not in others), {})
    rows = [*others, former | row]
    kept.write_text(json.dumps(rows, indent=2) + "\n")
    (out / "wheels.md").write_text(table(rows))


def table(rows: Sequence[dict[str, object]]) -> str:
    """The rows as a table in Markdown; what a row lacks is a dash."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    for row in rows:
        lines.append([str(row.get(name, "–")).replace("|", "\\|") for name in COLUMNS])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawTextHelpFormatter
    )
    steps = ["all", "sdist", "build", "pack", "try"]
    parser.add_argument("what", choices=steps, help="see below")
    parser.add_argument(
        "--torch",
        type=Torch.parse,
        action="append",
        metavar="VERSION[=FOLDER]",
        help=f"a torch to build for, or to try with; may be given several times;\n"
        f"default: {', '.join(TORCHES)}",
    )
    parser.add_argument("--wheel", type=Path, help="try: the wheel, instead of the one in --out")
    parser.add_argument(
        "--sdist", type=Path, help="the source distribution, instead of one made now"
    )
    parser.add_argument(
        "--test", action="store_true", help="quick tests of the sources on the installed wheel, too"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("dist"), help="default: dist")
    options = parser.parse_args(arguments)
    options.torch = options.torch or [Torch(version) for version in TORCHES]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; 1 if anything failed."""
    options = parsed(arguments)
    out = options.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    source = options.sdist
    if source is None and (options.what != "try" or options.test):
        source = sdist(out)
        print(source, flush=True)
    failed = False

    def each_torch(step: Callable[[Torch], dict[str, object]]) -> None:
        nonlocal failed
        for torch in options.torch:
            row: dict[str, object] = {"for_torch": torch.version, "for_python": python_tag()}
            row |= {"torch": torch.version, "date": datetime.date.today().isoformat()}
            try:
                row |= step(torch)
            except StepError as failure:
                failed = True
                row["result"] = f"failed: {failure}"
            record(out, row)
            print(table([row]).splitlines()[-1], flush=True)

    if options.what in ("all", "build"):
        each_torch(lambda torch: {"build_seconds": build(source, torch, out), "result": "built"})
    wheel = options.wheel
    if options.what in ("all", "pack"):
        try:
            wheel = pack(source, out)
        except StepError as failure:
            print(f"not packed: {failure}")
            return 1
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    if options.what in ("all", "try"):
        wheel = wheel or next(out.glob(f"*-{python_tag()}-*.whl"), None)
        if wheel is None:
            raise SystemExit(f"{out} has no wheel for {python_tag()}; `pack` makes one")
        tested = source if options.test else None
        each_torch(lambda torch: try_wheel(wheel, tested, torch, out))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
