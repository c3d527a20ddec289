"""Which torch setup.py builds for, however it is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import setuptools
import torch
from own_modules import own_importlib
from setup_script import setup_script

__all__ = ["setup_script"]  # a fixture
ROOT = Path(__file__).resolve().parents[1]


def environment_with_torch(directory: Path, version: str) -> Path:
    """A virtual environment that claims to hold this version of torch."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site_packages,) = directory.glob("lib/python*/site-packages")
    (site_packages / "torch").mkdir()
    (site_packages / "torch" / "__init__.py").touch()
    metadata = site_packages / f"torch-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return directory


@pytest.fixture
def isolated(setup_script, monkeypatch):
    """As uv or pip's venv-isolation run it: a throw-away interpreter without torch."""
    finding = setup_script.finding
    monkeypatch.setattr(finding, "importlib", own_importlib(lambda name: None))
    monkeypatch.setattr(finding, "installer", lambda: None)
    monkeypatch.setattr(finding, "uvs_target", lambda parent: None)
    monkeypatch.setattr(setuptools, "__file__", f"{sys.prefix}/lib/setuptools/__init__.py")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin")
    return finding


def test_importable_torch_comes_first(setup_script):
    found = setup_script.finding.find_torch()
    assert found.path == []
    assert torch.__version__.startswith(found.torch.split("+")[0])


def test_classic_isolation_leads_to_the_interpreter_itself(isolated, monkeypatch, tmp_path):
    monkeypatch.setattr(setuptools, "__file__", str(tmp_path / "overlay" / "__init__.py"))
    found = isolated.find_torch()
    assert torch.__version__.startswith(found.torch.split("+")[0])
    assert any(Path(path, "torch").is_dir() for path in found.path)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_environment_variable_leads_to_torch(isolated, monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, str(environment_with_torch(tmp_path / "env", "2.12.0")))
    assert isolated.find_torch().torch == "2.12.0"


def test_path_leads_past_the_build_environment(isolated, monkeypatch, tmp_path):
    environment = environment_with_torch(tmp_path / "env", "2.13.0+cpu")
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin{os.pathsep}{environment}/bin")
    assert isolated.find_torch().torch == "2.13.0+cpu"


def test_pip_in_the_parent_process_is_the_surest(isolated, monkeypatch, tmp_path):
    target = environment_with_torch(tmp_path / "target", "2.12.0")
    other = environment_with_torch(tmp_path / "other", "2.14.0")
    monkeypatch.setattr(isolated, "installer", lambda: target / "bin" / "python")
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    assert isolated.find_torch().torch == "2.12.0"


def test_installer_is_the_parent_interpreter(tmp_path):
    venv.create(tmp_path, with_pip=False, symlinks=True)
    child = (
        f"import runpy; setup = runpy.run_path({str(ROOT / 'setup.py')!r}, run_name='setup')\n"
        "print(setup['finding'].installer())"
    )
    parent = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {child!r}])"
    python = tmp_path / "bin" / "python"
    answer = subprocess.run([python, "-c", parent], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(python)


def uv_process(directory: Path, *arguments: str, **environment: str) -> Path:
    """What /proc has of a uv that answers with its arguments and its own VIRTUAL_ENV."""
    uv = directory / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text('#!/bin/sh\necho "$VIRTUAL_ENV:$(basename "$PWD"):$*"\n')
    uv.chmod(0o755)
    process, cwd = directory / "proc", directory / "cwd"
    process.mkdir()
    cwd.mkdir()
    (process / "exe").symlink_to(uv)
    (process / "cwd").symlink_to(cwd)
    (process / "cmdline").write_bytes(b"".join(f"{one}\0".encode() for one in ("uv", *arguments)))
    entries = {"PATH": os.environ["PATH"], "VIRTUAL_ENV": "the user's", **environment}
    text = "".join(f"{name}={value}\0" for name, value in entries.items())
    (process / "environ").write_bytes(text.encode())
    return process


@pytest.mark.parametrize(
    ("arguments", "environment", "asked"),
    [
        ("pip install -e .", {}, ""),
        ("pip install --python other -e .", {}, " other"),
        ("pip install --python=other -e .", {"UV_PYTHON": "3.12"}, " other"),
        ("pip install -e . -p ../env", {}, " ../env"),
        ("pip install --system -e .", {"UV_PYTHON": "3.12"}, " --system 3.12"),
        ("pip install -e .", {"UV_PROJECT_ENVIRONMENT": "/env"}, ""),
        ("sync", {"UV_PROJECT_ENVIRONMENT": "/env", "UV_PYTHON": "3.12"}, " /env"),
    ],
)
def test_uv_is_asked_for_whom_it_installs(setup_script, tmp_path, arguments, environment, asked):
    process = uv_process(tmp_path, *arguments.split(), **environment)
    answer = setup_script.finding.uvs_target(process)
    assert str(answer) == f"the user's:cwd:python find{asked}"


def test_other_parents_are_not_asked(setup_script, tmp_path):
    process = uv_process(tmp_path, "pip", "install", ".")
    (tmp_path / "bin" / "uv").rename(tmp_path / "bin" / "make")
    (process / "exe").unlink()
    (process / "exe").symlink_to(tmp_path / "bin" / "make")
    assert setup_script.finding.uvs_target(process) is None
    assert setup_script.finding.uvs_target(tmp_path / "gone") is None


def test_uv_in_the_parent_process_is_as_sure(isolated, monkeypatch, tmp_path):
    target = environment_with_torch(tmp_path / "target", "2.12.0")
    other = environment_with_torch(tmp_path / "other", "2.14.0")
    monkeypatch.setattr(isolated, "uvs_target", lambda parent: target / "bin" / "python")
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    assert isolated.find_torch().torch == "2.12.0"


def test_environments_that_do_not_help_are_passed_over(isolated, monkeypatch, tmp_path):
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    venv.create(tmp_path / "without_torch", with_pip=False, symlinks=True)
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "without_torch"))
    assert isolated.find_torch() is None


def test_torch_of_another_python_is_passed_over(isolated, monkeypatch):
    other = isolated.Environment("cpython-39", "2.13.0", [])
    monkeypatch.setattr(isolated, "probe", lambda interpreter: other)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert isolated.find_torch() is None


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.3", "2.15.0a0+git1234"])
def test_supported_torch(setup_script, version):
    setup_script.check_supported(version)


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "1.13.1", "3.0.0"])
def test_unsupported_torch_stops_the_build(setup_script, version):
    with pytest.raises(SystemExit, match=rf"torch>=2\.11,<2\.16.*torch {re.escape(version)}"):
        setup_script.check_supported(version)
