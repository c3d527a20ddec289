"""Finds the extension module for the torch that runs, and refuses one built for another.

A C++ extension of torch fits one torch only. Under another it fails with undefined symbols, or
worse, late and silently; so the versions are compared before it is loaded.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import re
import sys
from pathlib import Path

import torch

from ringcomm._toolchain import pip_install

PACKAGE = Path(__file__).resolve().parent


def _build_command() -> str:
    """The command that builds the extension for this interpreter's torch."""
    pip = pip_install()
    if (PACKAGE.parent / "setup.py").exists():
        return f"{pip} -e {PACKAGE.parent}"
    return f"{pip} --force-reinstall --no-deps --no-cache-dir PATH_TO_RINGCOMM_SOURCES"


def _minor(torch_version: str) -> str | None:
    """A release's minor version, 2.14 of 2.14.1+cu130; None of what is no release."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+(cu|rocm|cpu)\S*)?", torch_version)
    return release[1] if release else None


def _choose_build(builds: Path) -> Path:
    """The folder of a wheel's build for the torch that runs: with its CUDA, else for CPUs alone.

    Raises:
        ImportError: the wheel has none for this torch.
    """
    minor = _minor(str(torch.__version__))
    cuda = (torch.version.cuda or "").split(".")[0]
    for device in (f"cuda{cuda}", "cpu"):
        if (folder := builds / f"torch{minor}-{device}").exists():
            return folder
    found = {re.split("[h-]", folder.name)[1] for folder in builds.glob("torch*-*")}
    minors = sorted(found, key=lambda minor: [int(part) for part in minor.split(".")])
    raise ImportError(
        f"this wheel of ringcomm is for torch {', '.join(minors)}, and torch {torch.__version__} "
        f"is running. Install one of those, or build ringcomm for it: {_build_command()}"
    )


def _check_own_build() -> None:
    modules = [PACKAGE / f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    if not (PACKAGE / "_build_info.py").exists() or not any(map(Path.exists, modules)):
        raise ImportError(
            f"ringcomm's extension module was not built for Python {sys.version.split()[0]} in "
            f"{PACKAGE}. Build it: {_build_command()}"
        )
    built = importlib.import_module("ringcomm._build_info")
    wanted = (built.TORCH_VERSION, built.TORCH_CUDA)
    running = (str(torch.__version__), torch.version.cuda)
    if wanted != running:
        raise ImportError(
            f"ringcomm was built for torch {wanted[0]} (CUDA {wanted[1] or 'none'}), and torch "
            f"{running[0]} (CUDA {running[1] or 'none'}) is running. Rebuild it: {_build_command()}"
        )


def check_build(search_path: list[str]) -> None:
    """Makes ringcomm._C importable for the torch that runs, if it was built for that.

    A build from sources is for one torch. A wheel has builds for several, each in a folder of
    ringcomm/_builds/; any patch of a torch's minor version will do.

    Args:
        search_path: the package's __path__; a wheel's build is added to it.

    Raises:
        ImportError: there is no build for this torch; the message says what there is, and the
            command to run.
    """
    builds = PACKAGE / "_builds"
    if builds.exists():
        search_path.append(str(_choose_build(builds)))
    else:
        _check_own_build()
