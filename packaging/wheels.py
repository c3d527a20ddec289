"""Makes wheels of ringcomm, one for each torch, and tries each where nothing else is installed.

    python packaging/wheels.py all --torch 2.13.0+cpu --torch 2.14.1

makes a source distribution, from that a wheel for each torch, in a fresh virtual environment with
that torch, and installs each wheel into a second one, where it says its version, passes `doctor`
and adds numbers of two ranks of torchrun. The parts can be run by themselves:

    python packaging/wheels.py sdist
    python packaging/wheels.py build --torch 2.14.1
    python packaging/wheels.py try --torch 2.14.0 --wheel dist/ringcomm-0.1.0+torch2.14.cu130-*.whl

A torch is a version that pip can install, or VERSION=FOLDER, a site-packages folder that has it,
which is then imported from there. Everything is in dist/ (--out): the distributions, wheels.md and
wheels.json, which keep a row for each wheel and torch it was tried with, and logs/ of what was run.
What fails is a row, too, and the exit status is 1 then.

A wheel for a CUDA build of torch needs nvcc of the same major version (as `pip install -e .`), and
is for the architectures of TORCH_CUDA_ARCH_LIST, of the GPUs there, or a default list.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUM = """
import torch, ringcomm
ringcomm.init()
tensor = torch.full((1000,), float(ringcomm.get_rank() + 1))
ringcomm.all_reduce(tensor)
assert tensor.eq(3).all() and ringcomm.get_world_size() == 2
ringcomm.destroy_process_group()
"""
ASKED = """
import importlib.metadata, json, platform, torch
from ringcomm import _build_info
print(json.dumps({
    "python": platform.python_version(),
    "torch": str(torch.__version__),
    "cuda": torch.version.cuda,
    "arch_list": _build_info.ARCH_LIST,
    "requires": [r for r in importlib.metadata.requires("ringcomm") if r.startswith("torch=")],
}))
"""
# Of the quick tests, those that meet torch and look at the package alone, not at a checkout.
TESTS = (
    *("test_api.py", "test_init.py", "test_leaving.py", "test_backend_reductions.py"),
    *("test_backend_moves.py", "test_backend_messages.py", "test_process_group.py"),
)
COLUMNS = {
    "wheel": "wheel",
    "torch": "tried with torch",
    "python": "Python",
    "device": "for",
    "megabytes": "MB",
    "build_seconds": "built in s",
    "result": "result",
    "date": "date",
}


class StepError(Exception):
    """A step that did not work; its text is for the table."""


@dataclasses.dataclass(frozen=True)
class Torch:
    """A torch to build for or to try with: its version, and its folder if it is not pip's."""

    version: str
    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Torch:
        """Reads VERSION or VERSION=FOLDER.

        Raises:
            argparse.ArgumentTypeError: there is no torch in that folder.
        """
        version, _, folder = text.partition("=")
        if folder and not Path(folder, "torch").is_dir():
            raise argparse.ArgumentTypeError(f"{folder} has no torch; wanted: a site-packages")
        return cls(version, Path(folder).resolve() if folder else None)


def call(log: Path, *command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a command, whose output goes to the end of the log; its last line.

    The command sees this process's environment without what leads Python elsewhere.

    Raises:
        StepError: it exits with another status than 0.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept.pop("VIRTUAL_ENV", None)
    path = f"{Path(command[0]).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    with log.open("a+") as file:
        file.write(f"\n$ {' '.join(map(str, command))}\n")
        file.flush()
        began = file.tell()
        status = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env={**kept, "PATH": path, "PYTHONUNBUFFERED": "1", **environment},  # lines in order
            stdout=file,
            stderr=subprocess.STDOUT,
        ).returncode
        file.seek(began)
        lines = [line.strip() for line in file if line.strip()] or ["it said nothing"]
    if status:
        errors = [line for line in lines if line.startswith(("ERROR:", "error:"))]  # pip's
        name = " ".join(map(str, (Path(command[0]).name, *command[1:4])))
        raise StepError(f"`{name}` failed: {(errors or lines[-1:])[0][:200]}, see {log}")
    return lines[-1]


def fresh(folder: Path, log: Path, torch: Torch, *packages: str) -> Path:
    """The interpreter of a new virtual environment with this torch and these packages.

    Raises:
        StepError: pip cannot have one of them.
    """
    call(log, sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    wanted = [*packages] if torch.folder else [f"torch=={torch.version}", *packages]
    call(log, python, "-m", "pip", "install", "-q", "-U", "pip", *wanted, cwd=folder.parent)
    if torch.folder:
        (site_packages,) = folder.glob("lib/python*/site-packages")
        (site_packages / "torch_of_another_environment.pth").write_text(f"{torch.folder}\n")
    has = call(log, python, "-c", "import torch; print(torch.__version__)", cwd=folder.parent)
    if has.split("+")[0] != torch.version.split("+")[0]:
        raise StepError(f"torch {torch.version} was asked for, and {has} is there")
    return python


def sdist(out: Path) -> Path:
    """Makes the source distribution of this checkout.

    Raises:
        StepError: it could not be made; its log says why.
    """
    log = out / "logs" / "sdist.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        call(log, sys.executable, "-m", "venv", folder / "env", cwd=folder)
        python = folder / "env" / "bin" / "python"
        call(log, python, "-m", "pip", "install", "-q", "build", "setuptools>=77", cwd=folder)
        # Without isolation, which asks for what a build needs: no torch is needed to pack sources.
        command = (python, "-m", "build", "--sdist", "--no-isolation", "--skip-dependency-check")
        call(log, *command, "--outdir", folder / "sdist", ROOT, cwd=folder)
        (made,) = (folder / "sdist").glob("*.tar.gz")
        return _copy(made, out)


def build(source: Path, torch: Torch, out: Path) -> tuple[Path, float]:
    """Makes the wheel for a torch from a source distribution: where it is, seconds it took.

    Raises:
        StepError: the torch cannot be had, or the build failed.
    """
    log = out / "logs" / f"build-torch-{torch.version}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = fresh(folder / "env", log, torch, "setuptools>=77", "ninja")
        began = time.monotonic()
        command = (python, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps")
        options = ("--no-cache-dir", "-w", folder / "wheel", source.resolve())
        call(log, *command, *options, cwd=folder, RINGCOMM_WHEEL_FOR_TORCH="1")
        seconds = time.monotonic() - began
        (made,) = (folder / "wheel").glob("*.whl")
        return _copy(made, out), seconds


def attempt(wheel: Path, source: Path | None, torch: Torch, out: Path) -> dict[str, object]:
    """Installs a wheel beside a torch and tries it; what the table says of it.

    Args:
        wheel: the wheel.
        source: a source distribution whose quick tests are run, too; None: they are not.
        torch: what the wheel is tried with.
        out: where the log goes.

    Raises:
        StepError: something did not work.
    """
    version = wheel.name.split("-")[1]
    named = re.search(r"\+torch(\d+\.\d+)\.(cpu|cu\d+)$", version)
    if named is None:
        raise StepError(f"{wheel.name} names no torch; was it made by this script?")
    log = out / "logs" / f"try-{version}-with-torch-{torch.version}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = fresh(folder / "env", log, torch)
        call(log, python, "-m", "pip", "install", "-q", wheel.resolve(), cwd=folder)
        said = call(log, python, "-m", "ringcomm", "--version", cwd=folder)
        if said != f"ringcomm {version}":
            raise StepError(f"--version says {said!r}")
        found = json.loads(call(log, python, "-c", ASKED, cwd=folder))
        if found["requires"] != [f"torch=={named[1]}.*"]:
            raise StepError(f"it requires {found['requires']}")
        call(log, python, "-m", "ringcomm", "doctor", cwd=folder)
        (folder / "sum.py").write_text(SUM)
        ranks = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        call(log, python, "-m", *ranks, "sum.py", cwd=folder, OMP_NUM_THREADS="1")
        result = "version, doctor, sum of 2 ranks"
        if source:
            result += f", {_tests(source, python, folder, log)}"
    device = f"CUDA {found['cuda']}, {found['arch_list']}" if found["cuda"] else "CPU"
    return {"python": found["python"], "torch": found["torch"], "device": device, "result": result}


def _tests(source: Path, python: Path, folder: Path, log: Path) -> str:
    """The quick tests of a source distribution, without its package, on what is installed."""
    shutil.unpack_archive(source, folder / "source")
    (tree,) = (folder / "source").iterdir()
    (tree / "ringcomm").rename(tree / "ringcomm_of_the_sources")
    needed = ("pytest", "pytest-timeout", "hypothesis", "expecttest", "psutil")
    call(log, python, "-m", "pip", "install", "-q", *needed, cwd=folder)
    pytest = (python, "-m", "pytest", "-q", "-m", "not slow and not torch_suite")
    files = [f"tests/{name}" for name in TESTS]
    return call(log, *pytest, *files, cwd=tree).strip("= ")


def _copy(made: Path, out: Path) -> Path:
    target = out / made.name
    target.write_bytes(made.read_bytes())
    return target


def record(out: Path, row: dict[str, object]) -> None:
    """Puts a row into wheels.json and wheels.md, in place of an older one of the same things."""
    kept = out / "wheels.json"
    rows = json.loads(kept.read_text()) if kept.exists() else []
    same = ("wheel", "torch")
    rows = [old for old in rows if any(old.get(name) != row.get(name) for name in same)]
    rows.append(row)
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
    parser.add_argument("what", choices=["all", "sdist", "build", "try"], help="see below")
    parser.add_argument(
        "--torch",
        type=Torch.parse,
        action="append",
        default=[],
        metavar="VERSION[=FOLDER]",
        help="a torch to build for, or to try with; may be given several times",
    )
    parser.add_argument("--wheel", type=Path, help="try: the wheel to be tried")
    parser.add_argument(
        "--sdist", type=Path, help="the source distribution, instead of one made now"
    )
    parser.add_argument(
        "--test", action="store_true", help="quick tests of the sources on the installed wheel, too"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("dist"), help="default: dist")
    options = parser.parse_args(arguments)
    if options.what != "sdist" and not options.torch:
        parser.error(f"{options.what} needs at least one --torch, such as --torch 2.14.1")
    if options.what == "try" and not options.wheel:
        parser.error("try needs --wheel, the wheel to be tried")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; 1 if anything failed."""
    options = parsed(arguments)
    out = options.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    source = options.sdist
    failed = False
    if source is None and (options.what != "try" or options.test):
        source = sdist(out)
        print(source, flush=True)
    for torch in options.torch:
        row: dict[str, object] = {"wheel": "none", "torch": torch.version}
        row["date"] = datetime.date.today().isoformat()
        try:
            wheel, seconds = options.wheel, None
            if options.what != "try":
                wheel, seconds = build(source, torch, out)
                row["build_seconds"] = round(seconds)
            row |= {"wheel": wheel.name, "megabytes": round(wheel.stat().st_size / 1e6, 1)}
            row["result"] = "not tried"
            if options.what != "build":
                row |= attempt(wheel, source if options.test else None, torch, out)
        except StepError as failure:
            failed = True
            row["result"] = f"failed: {failure}"
        record(out, row)
        print(table([row]).splitlines()[-1], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
