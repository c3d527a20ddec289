"""Refuses an extension module that is missing or was built for another torch.

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


def _minor(torch_version: str, cuda: str | None) -> tuple[str, str | None]:
    """A release without its patch number, 2.14 of 2.14.1+cu130; anything else as it is."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+(cu|rocm|cpu)\S*)?", torch_version)
    return release[1] if release else torch_version, cuda


def check_build() -> None:
    """Checks that ringcomm._C is there and was built for the torch that runs.

    Raises:
        ImportError: it is not; the message names what differs and the command to run.
    """
    modules = [PACKAGE / f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    if not (PACKAGE / "_build_info.py").exists() or not any(map(Path.exists, modules)):
        raise ImportError(
            f"ringcomm's extension module was not built for Python {sys.version.split()[0]} in "
            f"{PACKAGE}. Build it: {_build_command()}"
        )
    built = importlib.import_module("ringcomm._build_info")
    wanted = (built.TORCH_VERSION, built.TORCH_CUDA)
    running = (str(torch.__version__), torch.version.cuda)
    any_patch = getattr(built, "ANY_PATCH", False)  # True in wheels that are given to others
    if wanted != running and not (any_patch and _minor(*wanted) == _minor(*running)):
        raise ImportError(
            f"ringcomm was built for torch {wanted[0]} (CUDA {wanted[1] or 'none'}), and torch "
            f"{running[0]} (CUDA {running[1] or 'none'}) is running. Rebuild it: {_build_command()}"
        )
