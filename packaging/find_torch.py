"""Which environment setup.py builds for, and the torch there.

An isolated build runs in an environment that pip or uv makes for it, without the user's torch. What
started it, and what surrounds it, lead back to the environment that is installed into.

It needs no torch; setup.py loads it by its path.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import setuptools

PROBE = """
import importlib.metadata, importlib.util, json, pathlib, sys
torch = importlib.util.find_spec("torch")
print(json.dumps({
    "python": sys.implementation.cache_tag,
    "torch": importlib.metadata.version("torch") if torch else None,
    "path": [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))],
    "package": str(pathlib.Path(torch.origin).parent) if torch and torch.origin else None,
}))
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """What an interpreter says of itself: its kind, the torch it would import, where from."""

    python: str
    torch: str | None
    path: list[str]
    package: str | None = None  # torch's folder

    def cuda(self) -> str | None:
        """torch.version.cuda, such as 13.0, without the seconds that importing torch takes."""
        version = Path(self.package or "", "version.py")
        text = version.read_text() if self.package and version.exists() else ""
        found = re.search(r"^cuda\b.*= *['\"]([\d.]+)", text, re.MULTILINE)
        return found[1] if found else None


def probe(interpreter: str | Path) -> Environment | None:
    """Asks an interpreter which torch it would import; None if it does not answer.

    -E drops PYTHONPATH, the means of pip's classic isolation, so that the interpreter sees the
    environment as its user does.
    """
    try:
        answer = subprocess.run(
            [interpreter, "-E", "-c", PROBE], capture_output=True, text=True, check=True, cwd="/"
        )
        return Environment(**json.loads(answer.stdout))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def installer() -> Path | None:
    """The interpreter that runs pip, if the parent process shows it by a path (Linux's /proc)."""
    parent = Path("/proc") / str(os.getppid())
    try:
        command = os.fsdecode((parent / "cmdline").read_bytes().split(b"\0")[0])
        interpreter = (parent / "cwd").resolve() / command
    except OSError:
        return None
    return interpreter if "/" in command and interpreter.name.startswith("python") else None


def uvs_target(parent: Path) -> Path | None:
    """The interpreter that uv installs for, if it is the parent process; uv itself is asked.

    Its VIRTUAL_ENV, as seen here, is the throw-away environment; its own is the user's.
    """
    try:
        uv = (parent / "exe").resolve()
        if uv.name != "uv":
            return None
        options = [os.fsdecode(part) for part in (parent / "cmdline").read_bytes().split(b"\0")]
        entries = (parent / "environ").read_bytes().split(b"\0")
        environ = dict(map(os.fsdecode, entry.split(b"=", 1)) for entry in entries if b"=" in entry)
        wanted = environ.get("UV_PYTHON")
        for option, following in zip(options, [*options[1:], ""], strict=True):
            name, _, value = option.partition("=")
            if name in ("-p", "--python"):
                wanted = value or following
        if "pip" not in options:  # but sync, run, add: a project's environment
            wanted = environ.get("UV_PROJECT_ENVIRONMENT", wanted)
        system = ["--system"] if "--system" in options else []
        answer = subprocess.run(
            [uv, "python", "find", *system, *([wanted] if wanted else [])],
            cwd=(parent / "cwd").resolve(),
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(answer.stdout.strip())


def interpreters() -> Iterator[str | Path]:
    """Interpreters that may belong to the environment installed into, the surest first."""
    prefix = Path(sys.prefix).resolve()
    if not Path(setuptools.__file__).resolve().is_relative_to(prefix):
        # pip's classic isolation: the interpreter is the user's, only sys.path is not.
        yield sys.executable
        return
    # Otherwise the interpreter belongs to a throw-away environment (uv, pip's venv-isolation).
    if surest := installer() or uvs_target(Path("/proc") / str(os.getppid())):
        yield surest
        return
    if virtual_env := os.environ.get("VIRTUAL_ENV"):
        yield Path(virtual_env) / "bin" / "python"
    for directory in os.get_exec_path():
        python = shutil.which("python", path=directory)
        if python and not Path(directory).resolve().is_relative_to(prefix):
            yield python
            break
    if conda_prefix := os.environ.get("CONDA_PREFIX"):
        yield Path(conda_prefix) / "bin" / "python"


def find_torch() -> Environment | None:
    """The environment whose torch to build against; None if the installer has to bring one."""
    this_python = str(sys.implementation.cache_tag)
    if torch := importlib.util.find_spec("torch"):
        package = str(Path(torch.origin).parent)
        return Environment(this_python, importlib.metadata.version("torch"), [], package)
    for interpreter in interpreters():
        environment = probe(interpreter)
        if environment and environment.torch and environment.python == this_python:
            return environment
    return None
