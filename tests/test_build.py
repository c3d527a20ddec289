"""The build's decisions: which torch, CUDA or not and why, and what an import refuses."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
import setuptools
import torch

from ringcomm import _build_check, _build_info, _toolchain

ROOT = Path(__file__).resolve().parents[1]
NVCC_13_0 = [f"compute_{sm}" for sm in (75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121)]
NVCC_12_4 = [f"compute_{sm}" for sm in (50, 60, 70, 75, 80, 86, 87, 89, 90)]


@pytest.fixture(scope="module")
def setup_script():
    """setup.py as a module; dataclasses needs it registered."""
    spec = importlib.util.spec_from_file_location("ringcomm_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


# ---- Which torch ------------------------------------------------------------------------------


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
    monkeypatch.setattr(finding.importlib.util, "find_spec", lambda name: None)
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


def test_machine_code_is_compressed(setup_script):
    """`size` is for drivers of CUDA 12.4 and newer; older ones read what -compress-all writes."""
    flags = {"12.6.85": "-Xfatbin=-compress-all", "12.9.41": "-Xfatbin=-compress-all"}
    flags |= {"13.0.88": "--compress-mode=size", "unknown": "-Xfatbin=-compress-all"}
    assert {version: _toolchain.compression_flag(version) for version in flags} == flags


def test_module_is_small():
    """Compressed, an architecture's machine code is about 1.3 MB, and the host's code 4.1 MB."""
    (module,) = (ROOT / "ringcomm").glob("_C.*.so")
    images = re.findall(r"\d+\.\d|PTX", _build_info.ARCH_LIST or "")
    assert module.stat().st_size < (5 + 3 * len(images)) * 1e6


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


def test_headers_are_compiled_once(setup_script, tmp_path):
    calls = []

    def compile_sources(sources, *, extra_postargs, **options):
        assert extra_postargs["nvcc"] == ["-lineinfo"] and options == {"debug": None}
        calls.append((sources, extra_postargs["cxx"]))
        objects = [tmp_path / Path(source).with_suffix(".o") for source in sources]
        for object in objects:
            object.parent.mkdir(parents=True, exist_ok=True)
        return list(map(str, objects))

    names = ["reduce/device.cu", "core/chunks.cpp", "torch/work.cpp", "torch/plan_bindings.cpp"]
    sources = [f"csrc/{name}" for name in names]
    objects = setup_script.precompile.wrapped(compile_sources, ROOT, tmp_path)(
        list(reversed(sources)), extra_postargs={"cxx": ["-O3"], "nvcc": ["-lineinfo"]}, debug=None
    )
    assert objects == [str(tmp_path / Path(source).with_suffix(".o")) for source in sources]
    headers = ["csrc/torch/precompiled.h", "csrc/core/precompiled.h"]
    of_torch, of_others = (["-O3", f"-include{tmp_path / h}", "-Winvalid-pch"] for h in headers)
    assert calls == [
        ([*headers, sources[0]], ["-O3"]),
        ([sources[1]], of_others),
        ([sources[2]], of_torch),
        ([sources[3]], [*of_torch, "-O1"]),
    ]
    for header in headers:
        included = tmp_path / header
        assert included.read_text() == (ROOT / header).read_text()
        compiled = Path(f"{included}.gch")
        assert compiled.readlink() == included.with_suffix(".o")


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
    _build_check.check_build()


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


def test_environments_of_uv_are_told_of_uv(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    uv = f"uv pip install --python {sys.executable}"
    assert _toolchain.pip_install() == uv
    assert _build_check._build_command() == f"{uv} -e {ROOT}"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert _toolchain.pip_install() == f"{sys.executable} -m pip install"


def test_import_without_a_build_says_so(tmp_path):
    this = f"TORCH_VERSION = {str(torch.__version__)!r}\nTORCH_CUDA = {torch.version.cuda!r}\n"
    for name, build_info, with_module in (("no_module", this, False), ("no_info", None, True)):
        error = import_copy(tmp_path / name, build_info, with_module)
        assert "ImportError: ringcomm's extension module was not built" in error, name
        assert f"{sys.executable} -m pip install " in error, name


def included(source: Path, pattern: str) -> list[str]:
    return re.findall(rf"#include [<\"]({pattern})", source.read_text())


def csrc() -> list[Path]:
    return sorted(path for path in (ROOT / "csrc").rglob("*.*") if path.is_file())


def test_only_the_torch_folder_includes_torch():
    for source in csrc():
        if source.parent.name != "torch":
            foreign = included(source, r"(?:torch|ATen|c10|pybind11)/.*")
            assert not foreign, f"{source} has {foreign}"


# From the bottom; a folder includes itself and those of lower floors.
FLOORS = [
    {"plan", "reduce"},
    {"streams", "core"},
    {"links", "fused"},
    {"nccl", "shm"},
    {"torch"},
]
# Streams carry out what core/ describes, and the other way round nothing is needed.
WITHIN_A_FLOOR = {("streams", "core")}


def test_arrows_between_folders_go_one_way():
    floor_of = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}
    assert {source.parent.name for source in csrc()} == set(floor_of)
    for source in csrc():
        own = source.parent.name
        for other in included(source, rf"(?:{'|'.join(floor_of)})(?=/\w+\.h\")"):
            below = floor_of[other] < floor_of[own]
            assert below or other == own or (own, other) in WITHIN_A_FLOOR, (
                f"{source.relative_to(ROOT)} includes {other}/"
            )


# The half of the backend that serves CPU tensors, by shared memory.
HOST_HALF = re.compile(
    r"backend\w*|arguments|(status_)?bindings|fast_path|message_work|shared_memory|sparse"
)


def test_who_needs_a_group_needs_no_shared_memory():
    for source in csrc():
        folder = source.parent.name
        if folder == "shm" or (folder == "torch" and HOST_HALF.fullmatch(source.stem)):
            continue
        assert not included(source, "shm/"), f"{source.relative_to(ROOT)} includes shm/"
        headers = [name for name in included(source, r"torch/\w+(?=\.h\")") if folder == "torch"]
        host = [name for name in headers if HOST_HALF.fullmatch(name.removeprefix("torch/"))]
        assert not host, f"{source.relative_to(ROOT)} includes {host}"
