"""The C++ tests of the torch-free core, each a program of its own, under sanitizers.

tests/cpp/test_*.cpp run under AddressSanitizer and UndefinedBehaviorSanitizer, and those named
test_*_threads.cpp once more under ThreadSanitizer. Objects stay in build/cpp-tests, where ninja
compiles again only what has changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ringcomm import _toolchain

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cpp-tests"
SANITIZERS = {
    "address": "-fsanitize=address,undefined -fno-sanitize-recover=all",
    # --wrap: see tests/cpp/one_mapping.h
    "thread": "-fsanitize=thread -Wl,--wrap=mmap,--wrap=munmap",
}
CORE = ("plan", "reduce", "shm", "streams")
TESTS = sorted((ROOT / "tests" / "cpp").glob("test_*.cpp"))
CASES = [("address", test) for test in TESTS]
CASES += [("thread", test) for test in TESTS if test.stem.endswith("_threads")]


def core_sources() -> list[Path]:
    """The sources of everything below csrc/torch/ that needs no GPU."""
    folders = [ROOT / "csrc", *(ROOT / "csrc" / name for name in CORE)]
    return sorted(source for folder in folders for source in folder.glob("*.cpp"))


def cuda_headers() -> list[Path]:
    """Where cuda_runtime_api.h and nccl.h are, to test csrc/nccl/ on a host that plays the GPU."""
    nvcc = _toolchain.find_nvcc()
    nccl = next(iter(_toolchain.in_wheels("nccl/include/nccl.h")), None)
    return [Path(_toolchain.toolkit_root(nvcc)) / "include", nccl.parent] if nvcc and nccl else []


def needs_cuda_headers(test: Path) -> bool:
    return test.stem.startswith("test_nccl")


def ninja_file() -> str:
    """Says how each test program comes about: the core as a library, so that tests take parts."""
    system = " ".join(f"-isystem {folder}" for folder in cuda_headers())
    lines = [
        f"cxx = {os.environ.get('CXX', 'c++')}",
        f"flags = -std=c++20 -O1 -g -fno-omit-frame-pointer -Wall -Wextra -pthread "
        f"-I{ROOT}/csrc -I{ROOT}/tests/cpp {system}",
        "rule compile",
        "  command = $cxx $flags $sanitize -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule archive",
        "  command = rm -f $out && ar crs $out $in",
        "rule link",
        "  command = $cxx $sanitize -pthread -rdynamic $in -lrt -ldl -o $out",
    ]
    for sanitizer, flags in SANITIZERS.items():
        tests = [test for name, test in CASES if name == sanitizer]
        if not tests:
            continue
        nccl = sorted((ROOT / "csrc" / "nccl").glob("*.cpp")) if system else []
        objects = {
            source: f"{sanitizer}/{source.relative_to(ROOT)}.o"
            for source in [*core_sources(), *nccl, *tests]
        }
        for source, built in objects.items():
            lines += [f"build {built}: compile {source}", f"  sanitize = {flags}"]
        core = " ".join(objects[source] for source in core_sources())
        lines.append(f"build {sanitizer}/core.a: archive {core}")
        for test in tests:
            own = " ".join(objects[source] for source in nccl if needs_cuda_headers(test))
            lines += [
                f"build {sanitizer}/{test.stem}: link {objects[test]} {own} {sanitizer}/core.a",
                f"  sanitize = {flags}",
            ]
    return "\n".join(lines) + "\n"


def run(*command: str | Path, timeout: int) -> None:
    """Runs a program; where it fails or does not end, the test fails with what it printed."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            status = subprocess.run(
                command, cwd=BUILD, stdout=output, stderr=subprocess.STDOUT, timeout=timeout
            ).returncode
            failure = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            failure = f"no end after {timeout} seconds"
        output.seek(0)
        if failure:
            pytest.fail(f"{command[0]}: {failure}\n{output.read()}", pytrace=False)


@pytest.fixture(scope="module")
def written_ninja_file() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "build.ninja").write_text(ninja_file())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("written_ninja_file")
@pytest.mark.parametrize(
    ("sanitizer", "test"), CASES, ids=lambda value: getattr(value, "stem", value)
)
def test_core(sanitizer: str, test: Path) -> None:
    if needs_cuda_headers(test) and not cuda_headers():
        pytest.skip("no CUDA toolkit, or no NCCL wheel, whose headers it needs")
    jobs = len(os.sched_getaffinity(0))
    run(sys.executable, "-m", "ninja", f"-j{jobs}", f"{sanitizer}/{test.stem}", timeout=600)
    run(BUILD / sanitizer / test.stem, timeout=240)
