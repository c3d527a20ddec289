"""The build's decisions: CUDA or not and why, and what an import refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from own_modules import own, own_importlib
from setup_script import setup_script

from ringcomm import _build_check, _build_info, _toolchain

__all__ = ["setup_script"]  # a fixture
ROOT = Path(__file__).resolve().parents[1]
NVCC_13_0 = [f"compute_{sm}" for sm in (75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121)]
NVCC_12_4 = [f"compute_{sm}" for sm in (50, 60, 70, 75, 80, 86, 87, 89, 90)]


# ---- CUDA or not ------------------------------------------------------------------------------


def test_architectures_that_nvcc_knows_stay():
    default = _toolchain.WHEEL_ARCH_LIST
    assert _toolchain.trim_arch_list(default, NVCC_13_0) == default
    assert _toolchain.trim_arch_list(default, NVCC_12_4) == "8.0;8.9;9.0+PTX"
    assert _toolchain.trim_arch_list(default, []) == ""


def test_choice_of_architectures(monkeypatch):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    default, all_of_them = _toolchain.ARCH_LIST, _toolchain.WHEEL_ARCH_LIST
    assert _toolchain.choose_arch_list([], NVCC_13_0) == default
    assert _toolchain.choose_arch_list([], NVCC_13_0, all_of_them) == all_of_them
    assert _toolchain.choose_arch_list([(9, 0), (8, 0), (9, 0)], NVCC_13_0) == "8.0;9.0"
    assert _toolchain.choose_arch_list([(13, 0)], NVCC_13_0) == default
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    assert _toolchain.choose_arch_list([(8, 0)], NVCC_13_0) == "9.0a"


def test_cpu_only_reason():
    assert _toolchain.cpu_only_reason("2.14.1+cu130", "13.0", "13.2.1") is None
    reason = _toolchain.cpu_only_reason("2.13.0+cpu", None, "13.0.88")
    assert reason == "torch 2.13.0+cpu is not a CUDA build"
    assert "no nvcc" in _toolchain.cpu_only_reason("2.14.1+cu130", "13.0", None)
    reason = _toolchain.cpu_only_reason("2.14.1+cu130", "13.0", "12.4.131")
    assert reason == "nvcc 12.4.131 does not fit torch's CUDA 13.0"


def test_cuda_can_be_left_out_or_insisted_on(setup_script, monkeypatch):
    monkeypatch.setattr(setup_script.toolchain, "find_nvcc", lambda cuda: None)
    monkeypatch.setenv("RINGCOMM_WITH_CUDA", "0")
    assert setup_script.configure().cpu_only_reason == "RINGCOMM_WITH_CUDA is 0"
    monkeypatch.setenv("RINGCOMM_WITH_CUDA", "1")
    with pytest.raises(SystemExit, match=r"RINGCOMM_WITH_CUDA is 1, but .*\."):
        setup_script.configure()
    monkeypatch.setenv("RINGCOMM_WITH_CUDA", "")
    assert setup_script.configure().cpu_only_reason not in (None, "RINGCOMM_WITH_CUDA is 0")
    monkeypatch.setenv("RINGCOMM_WITH_CUDA", "no")
    with pytest.raises(SystemExit, match="RINGCOMM_WITH_CUDA is 'no'; it must be 0 or 1"):
        setup_script.configure()


@pytest.mark.parametrize(("given", "built"), [(None, False), ("0", False), ("1", True)])
def test_functions_that_only_tests_call_are_built_if_asked_for(
    setup_script, monkeypatch, given, built
):
    monkeypatch.delenv("RINGCOMM_WITH_TESTS", raising=False)
    if given:
        monkeypatch.setenv("RINGCOMM_WITH_TESTS", given)
    extension = setup_script.extension(setup_script.Config("2.14.1", None, "c++"))
    assert any("test_bindings" in source for source in extension.sources) == built
    assert (("RINGCOMM_WITH_TESTS", "1") in extension.define_macros) == built


def test_machine_code_is_compressed(setup_script):
    """`size` is for drivers of CUDA 12.4 and newer; older ones read what -compress-all writes."""
    flags = {"12.6.85": "-Xfatbin=-compress-all", "12.9.41": "-Xfatbin=-compress-all"}
    flags |= {"13.0.88": "--compress-mode=size", "unknown": "-Xfatbin=-compress-all"}
    assert {version: _toolchain.compression_flag(version) for version in flags} == flags


def test_module_is_small():
    """Compressed, an architecture's machine code is about 1.3 MB; the host's code is 5.1 MB."""
    (module,) = (ROOT / "ringcomm").glob("_C.*.so")
    images = re.findall(r"\d+\.\d|PTX", _build_info.ARCH_LIST or "")
    assert module.stat().st_size < (5.5 + 3 * len(images)) * 1e6


def test_the_source_distribution_is_whole(tmp_path):
    command = ("setup.py", "-q", "egg_info", "--egg-base", tmp_path, "sdist", "-d", tmp_path)
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no checkout of git")
    missing = [name for name in listed.stdout.splitlines() if name not in packed]
    assert [name for name in missing if not name.startswith(".")] == []


def test_the_wheel_has_what_is_no_python(tmp_path):
    """And setuptools has nothing to say of it: the stubs in _C/ are not a package."""
    command = ("setup.py", "-q", "egg_info", "--egg-base", tmp_path, "build_py", "-d", tmp_path)
    result = subprocess.run(
        [sys.executable, *command], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert "absent from the `packages`" not in result.stderr
    package = tmp_path / "ringcomm"
    built = ("_C.", "__pycache__")
    missing = [
        str(path)
        for path in (ROOT / "ringcomm").rglob("*")
        if path.is_file() and not any(word in str(path) for word in built)
        if not (package / path.relative_to(ROOT / "ringcomm")).exists()
    ]
    assert missing == []


def test_sources_are_compiled_together(setup_script, tmp_path):
    csrc = ROOT / "csrc"
    names = ["torch/work.cpp", "torch/plan_bindings.cpp", "core/call.cpp", "core/board.cpp"]
    names += ["torch/backend.cpp", "reduce/host.cpp", "reduce/host_avx2.cpp"]
    written = setup_script.unity.write([csrc / name for name in names], csrc, tmp_path)
    texts = {path.stem: path.read_text().splitlines() for path in written}
    assert texts.pop("torch_bindings")[1:] == ['#include "torch/plan_bindings.cpp"']
    assert texts == {
        "torch_backend": ['#include "torch/backend.cpp"'],
        "torch": ['#include "torch/work.cpp"'],
        "reduce_host_avx2": ['#include "reduce/host_avx2.cpp"'],
        "reduce": ['#include "reduce/host.cpp"'],
        "core": ['#include "core/board.cpp"', '#include "core/call.cpp"'],
    }


def test_units_that_stay_as_they_are_are_not_compiled_again(setup_script, tmp_path):
    csrc = ROOT / "csrc"
    sources = [csrc / "core/call.cpp", csrc / "plan/verify.cpp"]
    paths = setup_script.unity.write(sources, csrc, tmp_path)
    for path in paths:
        os.utime(path, (1, 1))
    setup_script.unity.write([*sources, csrc / "plan/draft.cpp"], csrc, tmp_path)
    assert {path.stem: path.stat().st_mtime == 1 for path in paths} == {"plan": False, "core": True}


def test_toolkit_behind_a_wrapper_script(monkeypatch, tmp_path):
    toolkit = tmp_path / "cuda-13.0"
    (toolkit / "bin").mkdir(parents=True)
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/sh\necho '#$ TOP={toolkit}/bin/..' >&2\n")
    wrapper.chmod(0o755)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert _toolchain.find_nvcc() == str(wrapper)
    assert _toolchain.toolkit_root(str(wrapper)) == str(toolkit)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    assert _toolchain.find_nvcc() is None


def test_nccl_version_is_read_from_the_header(tmp_path):
    header = tmp_path / "nccl.h"
    header.write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 30\n#define NCCL_PATCH 7\n")
    assert _toolchain.nccl_version(header) == "2.30.7"


# ---- What is recorded and refused -------------------------------------------------------------


def test_summary_says_what_and_why(setup_script):
    cpu = setup_script.Config("2.13.0+cpu", None, "g++ 12", cpu_only_reason="of a test")
    assert "CPU only, because of a test" in cpu.summary()
    cuda = setup_script.Config(
        "2.14.1+cu130", "13.0", "g++ 12", nvcc_version="13.0.88", arch_list="9.0"
    )
    assert "CPU and CUDA, nvcc 13.0.88 for 9.0" in cuda.summary()


def test_the_first_line_says_what_is_built_and_how_long_it_takes(setup_script):
    cpu = setup_script.Config("2.15.0", None, "g++ 12", cpu_only_reason="of a test")
    assert "the CPU half (of a test), for torch 2.15.0. That took 150 s" in cpu.announcement()
    cuda = setup_script.Config("2.15.0", "13.2", "g++ 12", arch_list="8.0;9.0+PTX")
    assert (
        "the CUDA half, for 8.0;9.0+PTX, for torch 2.15.0. That took 330 s" in cuda.announcement()
    )


def test_build_info_is_python(setup_script):
    config = setup_script.Config("2.13.0+cpu", None, "g++ 'odd' \\ name", "a reason")
    written: dict[str, object] = {}
    exec(config.build_info(), written)
    assert written["TORCH_VERSION"] == "2.13.0+cpu"
    assert written["COMPILER"] == "g++ 'odd' \\ name"
    assert written["SUMMARY"] == config.summary()


def test_build_info_describes_this_torch():
    assert torch.__version__ == _build_info.TORCH_VERSION
    assert torch.version.cuda == _build_info.TORCH_CUDA
    _build_check.check_build([])


def import_copy(tmp_path: Path, build_info: str | None, with_module: bool) -> str:
    """What a fresh interpreter prints as it imports a copy of the package."""
    package = tmp_path / "ringcomm"
    built = shutil.ignore_patterns("_C*.so", "_build_info.py", "__pycache__")
    shutil.copytree(ROOT / "ringcomm", package, ignore=built)
    if build_info is not None:
        (package / "_build_info.py").write_text(build_info)
    if with_module:
        for module in (ROOT / "ringcomm").glob("_C*.so"):
            (package / module.name).symlink_to(module)
    command = [sys.executable, "-c", "import ringcomm"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr


def test_import_under_another_torch_names_both_and_the_command(tmp_path):
    other = 'TORCH_VERSION = "2.11.0+cu999"\nTORCH_CUDA = "99.9"\n'
    error = import_copy(tmp_path, other, with_module=True)
    assert "ImportError: ringcomm was built for torch 2.11.0+cu999 (CUDA 99.9)" in error
    assert f"torch {torch.__version__} (CUDA {torch.version.cuda or 'none'}) is running" in error
    assert f"{sys.executable} -m pip install " in error


def test_environments_of_uv_install_by_uv(monkeypatch):
    monkeypatch.setattr(_toolchain, "importlib", own_importlib(lambda name: None))
    monkeypatch.setattr(_toolchain, "shutil", own(shutil, which=lambda name: f"/bin/{name}"))
    uv = f"uv pip install --python {sys.executable}"
    assert _toolchain.pip_install() == uv
    assert _build_check._build_command() == f"{uv} -e {ROOT}"
    monkeypatch.setattr(_toolchain, "shutil", own(shutil, which=lambda name: None))
    assert _toolchain.pip_install() == f"{sys.executable} -m pip install"


def test_import_without_a_build_says_so(tmp_path):
    this = f"TORCH_VERSION = {str(torch.__version__)!r}\nTORCH_CUDA = {torch.version.cuda!r}\n"
    for name, build_info, with_module in (("no_module", this, False), ("no_info", None, True)):
        error = import_copy(tmp_path / name, build_info, with_module)
        assert "ImportError: ringcomm's extension module was not built" in error, name
        assert f"{sys.executable} -m pip install " in error, name
