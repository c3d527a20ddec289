"""Fresh virtual environments with a torch, in which commands run and are logged."""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path


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
