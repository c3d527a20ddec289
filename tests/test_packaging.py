"""The wheel for all torches, what it requires, and what an isolated build asks for."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import fresh_environment
import pytest
import torch
import wheels
from documents import commands, page
from own_modules import own
from setup_script import setup_script
from test_build import import_copy

from ringcomm import _build_check, _toolchain

__all__ = ["setup_script"]  # a fixture
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test chooses by itself whether the CUDA half is built."""
    monkeypatch.delenv("RINGCOMM_WITH_CUDA", raising=False)


# ---- What is packed ---------------------------------------------------------------------------


def metadata(folder: Path, *command: str | Path, tree: Path = ROOT, builds: str = "") -> Message:
    """What setup.py writes as the metadata of a distribution."""
    arguments = ("setup.py", "-q", "egg_info", "--egg-base", folder, *command)
    environment = {**os.environ, "RINGCOMM_BUILDS": builds}
    subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, check=True)
    return Parser().parsestr((folder / "ringcomm.egg-info" / "PKG-INFO").read_text())


def required(found: Message) -> list[str]:
    return [line for line in found.get_all("Requires-Dist", []) if line.startswith("torch")]


@pytest.fixture
def builds(tmp_path: Path) -> Path:
    """Folders as packaging/wheels.py makes them, for three torches that no environment has."""
    folder = tmp_path / "builds"
    for name in ("torch2.9-cpu", "torch2.10-cpu", "torch2.10-cuda13", "torch2.11-cpu"):
        (folder / name).mkdir(parents=True)
        (folder / name / "_C.so").write_text(name)
    return folder


def test_the_wheel_has_each_build_and_requires_their_torches(tmp_path, builds):
    command = ("bdist_wheel", "-d", tmp_path, "--bdist-dir", tmp_path / "bdist")
    command += ("build", "-b", tmp_path / "build")
    found = metadata(tmp_path, *command, builds=str(builds))
    assert required(found)[0] == "torch<2.12,>=2.9"
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"ringcomm-\d+\.\d+\.\d+-cp3\d+-cp3\d+-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    packed = [name for name in names if name.startswith("ringcomm/_builds/")]
    assert sorted(packed) == sorted(
        f"ringcomm/_builds/{path.relative_to(builds)}" for path in builds.glob("*/*")
    )
    assert not [name for name in names if re.match(r"ringcomm/(_C\.|_build_info)", name)]


def test_nothing_to_pack(setup_script, tmp_path):
    with pytest.raises(SystemExit, match=r"RINGCOMM_BUILDS is .*, which has no folder torchX\.Y"):
        setup_script.builds_required(tmp_path)


def test_a_source_distribution_is_for_all_torches(tmp_path):
    found = metadata(tmp_path, "sdist", "-d", tmp_path)
    assert re.fullmatch(r"\d+\.\d+\.\d+", found["Version"])
    assert required(found)[0] == "torch<2.16,>=2.11"
    shutil.unpack_archive(next(tmp_path.glob("*.tar.gz")), tmp_path)
    (tree,) = (path for path in tmp_path.glob("ringcomm-*") if path.is_dir())
    assert not (tree / "ringcomm" / "_build_info.py").exists()


# ---- Which build is imported ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "cuda", "chosen"),
    [
        ("2.10.1+cu130", "13.0", "torch2.10-cuda13"),
        ("2.10.0+cu132", "13.2", "torch2.10-cuda13"),
        ("2.10.0+cu129", "12.9", "torch2.10-cpu"),
        ("2.10.0+cpu", None, "torch2.10-cpu"),
        ("2.10.0", None, "torch2.10-cpu"),
        ("2.9.7+cu130", "13.0", "torch2.9-cpu"),
    ],
)
def test_the_build_for_the_torch_that_runs(monkeypatch, builds, version, cuda, chosen):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert _build_check._choose_build(builds) == builds / chosen


@pytest.mark.parametrize("version", ["2.8.0", "2.10.0a0+git1234", "3.0.0+cpu"])
def test_a_torch_that_the_wheel_does_not_know(monkeypatch, builds, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError) as refused:
        _build_check._choose_build(builds)
    assert f"is for torch 2.9, 2.10, 2.11, and torch {version} is running." in str(refused.value)
    assert "build ringcomm for it: " in str(refused.value)


def test_a_wheel_s_build_is_imported(tmp_path):
    """As installed: the module of this environment in the folder for its torch."""
    minor = ".".join(torch.__version__.split(".")[:2])
    folder = tmp_path / "ringcomm" / "_builds" / f"torch{minor}-cpu"
    error = import_copy(tmp_path, None, with_module=False)
    assert "was not built" in error
    folder.mkdir(parents=True)
    for built in ("_build_info.py", *(path.name for path in (ROOT / "ringcomm").glob("_C.*.so"))):
        (folder / built).symlink_to(ROOT / "ringcomm" / built)
    program = "from ringcomm import _C, _build_info, topology; print(_C.__file__)"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(folder))
    folder.rename(folder.with_name("torch1.0-cpu"))
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr
    assert f"ImportError: this wheel of ringcomm is for torch 1.0, and torch {minor}" in failed


# ---- Where the sources came from --------------------------------------------------------------


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://example.org/owner/ringcomm.git\n", "https://example.org/owner/ringcomm"),
        ("https://somebody:secret@example.org:8443/ringcomm/", "https://example.org/ringcomm"),
        ("git@example.org:owner/ringcomm.git", "https://example.org/owner/ringcomm"),
        ("ssh://git@example.org:22/owner/ringcomm", "https://example.org/owner/ringcomm"),
        ("/srv/git/ringcomm.git", None),
        ("file:///srv/git/ringcomm.git", None),
        ("../ringcomm.git", None),
        ("somewhere:ringcomm", None),
    ],
)
def test_a_remote_s_page_has_no_secrets(setup_script, remote, address):
    assert setup_script.address.web_address(remote) == address


def test_distributions_say_where_the_sources_came_from(tmp_path):
    """Of a clone and of what is packed from it, which has no git; without an origin, nothing."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns("build", ".git", "*.so", ".*_cache"))
    subprocess.run(["git", "init", "-q", clone], check=True)
    assert "Project-URL" not in metadata(tmp_path, tree=clone)
    remote = ("remote", "add", "origin", "git@example.org:owner/ringcomm.git")
    subprocess.run(["git", "-C", clone, *remote], check=True)
    found = metadata(tmp_path, "sdist", "-d", tmp_path, tree=clone)
    assert found["Project-URL"] == "Source, https://example.org/owner/ringcomm"
    shutil.unpack_archive(next(tmp_path.glob("*.tar.gz")), tmp_path)
    (unpacked,) = (path for path in tmp_path.glob("ringcomm-*") if path.is_dir())
    assert metadata(tmp_path, tree=unpacked)["Project-URL"] == found["Project-URL"]


def test_pages_beside_the_sources_are_said_where_their_place_is_known(setup_script):
    assert setup_script.address.pages(None) == {}
    other = "https://example.org/owner/ringcomm"
    assert setup_script.address.pages(other) == {"Source": other}
    address = "https://github.com/owner/ringcomm"
    found = setup_script.address.pages(address)
    assert list(found) == ["Source", "Documentation", "Changelog", "Issues"]
    for url in found.values():
        path = url.removeprefix(address).removeprefix("/blob/HEAD/").partition("#")[0]
        assert path in ("", "/issues") or (ROOT / path).is_file()


def test_classifiers_are_of_the_index_and_as_the_project_is(tmp_path):
    found = metadata(tmp_path)
    named = found.get_all("Classifier", [])
    assert found["License"] == "Apache-2.0"
    assert not [name for name in named if name.startswith("License ::")]
    minors = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/wheels.yml").read_text())
    versions = [re.sub(r"cp3(\d+)-.*", r"3.\1", one.strip()) for one in minors[0].split(",")]
    python = "Programming Language :: Python :: "
    assert [
        name.removeprefix(python) for name in named if name.startswith(f"{python}3.")
    ] == versions
    assert found["Requires-Python"] == f">={versions[0]}"
    assert ("Typing :: Typed" in named) == (ROOT / "ringcomm" / "py.typed").exists()


def test_only_torches_that_do_not_look_for_backends_load_one(setup_script):
    looked_for = {
        "console_scripts": ["ringcomm = ringcomm_command:main"],
        "torch.distributed.backends": ["ring = ringcomm.backend:register"],
        "vllm.general_plugins": ["ringcomm = ringcomm.vllm:register"],
    }
    loaded = {"torch.backends": ["ringcomm = ringcomm_autoload:register"]}
    for torch_version in ("2.13.0+cpu", None):
        assert setup_script.entry_points(torch_version) == looked_for | loaded
    for torch_version in ("2.14.1+cu130", "2.15.0"):
        assert setup_script.entry_points(torch_version) == looked_for


def test_an_environment_switch_is_0_or_1(setup_script, monkeypatch):
    monkeypatch.setenv("RINGCOMM_WITH_CUDA", "yes")
    with pytest.raises(SystemExit, match="RINGCOMM_WITH_CUDA is 'yes'; it must be 0 or 1"):
        setup_script.wanted_cuda()


def test_torch_of_an_environment_says_its_cuda(setup_script):
    found = setup_script.finding.probe(sys.executable)
    assert found.cuda() == setup_script.finding.find_torch().cuda() == torch.version.cuda
    assert setup_script.finding.Environment("cpython-311", None, []).cuda() is None


# ---- nvcc from wheels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "wanted", "nvcc", "needed"),
    [
        ("13.0", "1", None, ["cuda-toolkit[cccl,nvcc]==13.0.*"]),
        ("13.2", "1", "12.4.131", ["cuda-toolkit[cccl,nvcc]==13.2.*"]),
        ("13.2", "1", "13.0.88", []),
        ("13.0", "", None, []),
        ("13.0", "0", None, []),
        (None, "1", None, []),
        ("12.8", "1", None, []),  # whose wheels have no nvcc
    ],
)
def test_nvcc_is_asked_for_where_there_is_none(
    setup_script, monkeypatch, tmp_path, cuda, wanted, nvcc, needed
):
    toolchain = setup_script.toolchain
    monkeypatch.setattr(toolchain, "find_nvcc", lambda torch_cuda: nvcc)
    monkeypatch.setattr(toolchain, "nvcc_version", lambda found: found)
    monkeypatch.setenv("RINGCOMM_WITH_CUDA", wanted)
    (tmp_path / "version.py").write_text(f"cuda: Optional[str] = {cuda!r}\n")
    environment = setup_script.finding.Environment("cpython-311", "2.14.1", [], str(tmp_path))
    assert setup_script.needed_to_build(environment) == needed


def test_without_torch_both_are_asked_for(setup_script, monkeypatch):
    monkeypatch.setattr(setup_script.toolchain, "find_nvcc", lambda torch_cuda: None)
    plain = setup_script.needed_to_build(None)
    assert plain == ["torch>=2.11,<2.16"]
    monkeypatch.setenv("RINGCOMM_WITH_CUDA", "1")
    assert setup_script.needed_to_build(None) == [*plain, "cuda-toolkit[cccl,nvcc]==13.*"]


def fake_nvcc(folder: Path, version: str) -> str:
    folder.mkdir(parents=True)
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'release, V{version}'\n")
    nvcc.chmod(0o755)
    return str(nvcc)


def test_nvcc_of_wheels_comes_last_unless_it_alone_fits(monkeypatch, tmp_path):
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)

    def which(name, path=None):
        """A toolkit of this machine is not looked at."""
        found_in = path or os.environ["PATH"]
        return None if path == "/usr/local/cuda/bin" else shutil.which(name, path=found_in)

    monkeypatch.setattr(_toolchain, "shutil", own(shutil, which=which))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    in_wheel = fake_nvcc(tmp_path / "site-packages" / "nvidia" / "cu13" / "bin", "13.0.88")
    assert _toolchain.find_nvcc() == in_wheel
    on_path = fake_nvcc(tmp_path / "bin", "12.4.131")
    assert _toolchain.find_nvcc() == on_path
    assert _toolchain.find_nvcc("12.6") == on_path
    assert _toolchain.find_nvcc("13.2") == in_wheel
    assert _toolchain.find_nvcc("11.8") == on_path


def test_the_runtime_of_a_wheel_is_linked_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert _toolchain.link_cudart("/nowhere") == ["-lcudart"]
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    assert _toolchain.link_cudart("/nowhere") == [f"-L{library.parent}", "-l:libcudart.so.13"]
    toolkit = tmp_path / "toolkit"
    (toolkit / "lib64").mkdir(parents=True)
    (toolkit / "lib64" / "libcudart.so").touch()
    assert _toolchain.link_cudart(str(toolkit)) == [f"-L{toolkit}/lib64", "-l:libcudart.so"]


# ---- The script -------------------------------------------------------------------------------


def test_a_torch_is_a_version_or_a_folder(tmp_path):
    assert wheels.Torch.parse("2.13.0+cpu") == wheels.Torch("2.13.0+cpu")
    with pytest.raises(argparse.ArgumentTypeError, match="has no torch"):
        wheels.Torch.parse(f"2.14.1={tmp_path}")
    (tmp_path / "torch").mkdir()
    assert wheels.Torch.parse(f"2.14.1={tmp_path}") == wheels.Torch("2.14.1", tmp_path)


@pytest.mark.parametrize("arguments", ["", "install", "build --torch 2.14.1=/nowhere"])
def test_wrong_usage(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        wheels.parsed(arguments.split())
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_all_supported_torches_are_the_default(setup_script):
    minors = [setup_script.numbers(torch.version) for torch in wheels.parsed(["all"]).torch]
    oldest, newest = setup_script.OLDEST_TORCH, setup_script.NEWEST_TORCH
    assert minors == [(2, minor) for minor in range(oldest[1], newest[1] + 1)]


def test_the_page_shows_what_the_script_takes():
    shown = [line for line in commands(page("howto/wheels.md")) if "wheels.py" in line]
    assert shown
    for line in shown:
        wheels.parsed(shlex.split(line.split("packaging/wheels.py ")[1]))


def test_what_fails_is_a_row_and_the_others_go_on(monkeypatch, tmp_path):
    wheel = tmp_path / "ringcomm-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(bytes(1_500_000))

    def build(source, torch, out):
        if torch.version == "9.9":
            raise wheels.StepError("no such torch | anywhere")
        return 61

    def try_wheel(wheel, source, torch, out):
        if torch.version == "9.9":
            raise wheels.StepError("no such torch | anywhere")
        return {"python": "3.11.7", "torch": "2.13.0+cpu", "device": "CPU", "result": "a sum"}

    monkeypatch.setattr(wheels, "sdist", lambda out: out / "ringcomm-0.1.0.tar.gz")
    monkeypatch.setattr(wheels, "build", build)
    monkeypatch.setattr(wheels, "pack", lambda source, out: wheel)
    monkeypatch.setattr(wheels, "try_wheel", try_wheel)
    arguments = ["all", "--torch", "9.9", "--torch", "2.13.0", "-o", str(tmp_path / "out")]
    assert wheels.main(arguments) == 1
    assert wheels.main(arguments) == 1  # rows are replaced
    missing, made = json.loads((tmp_path / "out" / "wheels.json").read_text())
    assert missing["result"] == "failed: no such torch | anywhere"
    assert made["result"] == "a sum" and made["build_seconds"] == 61
    lines = (tmp_path / "out" / "wheels.md").read_text().splitlines()
    assert len(lines) == 4 and lines[2].startswith("| 9.9 | – | – |")
    assert "no such torch \\| anywhere" in lines[2]


def test_a_command_that_fails_says_its_last_line(tmp_path):
    log = tmp_path / "log"
    program = "import sys; print('said', sys.argv[1]); sys.exit(sys.argv[2] or None)"
    said = fresh_environment.call(log, sys.executable, "-c", program, "this", "", cwd=tmp_path)
    assert said == "said this"
    with pytest.raises(wheels.StepError, match=rf"failed: why, see {log}"):
        fresh_environment.call(log, sys.executable, "-c", program, "that", "why", cwd=tmp_path)
    assert re.findall(r"^said \w+$", log.read_text(), re.M) == ["said this", "said that"]
