"""The C++ tests of the torch-free core, each a program of its own, under sanitizers.

tests/cpp/test_*.cpp run under AddressSanitizer and UndefinedBehaviorSanitizer, and those named
test_*_threads.cpp once more under ThreadSanitizer. Objects stay in build/cpp-tests, where ninja
compiles again only what has changed.

How much some of them try follows from environment variables, which CONTRIBUTING.md lists.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import ahead
import pytest
import unity

from ringcomm import _toolchain

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cpp-tests"
CORES = len(os.sched_getaffinity(0))
PRECOMPILED = ROOT / "tests" / "cpp" / "precompiled.h"
SANITIZERS = {
    "address": "-fsanitize=address,undefined -fno-sanitize-recover=all",
    # --wrap: see tests/cpp/one_mapping.cpp. What is instrumented hides what is initialised.
    "thread": "-fsanitize=thread -Wno-maybe-uninitialized -Wno-tsan -Wl,--wrap=mmap,--wrap=munmap",
}
CORE = ("plan", "reduce", "core", "setup", "shm", "hosts", "gpu/streams", "gpu/fused")
TESTS = sorted((ROOT / "tests" / "cpp").glob("test_*.cpp"))
# Programs that other tests talk to.
HELPERS = [ROOT / "tests" / "cpp" / "run_plans.cpp"]
# What only tests of the fused kernels, and of csrc/gpu/nccl/, are made of besides.
OF_FUSED = ("tests/cpp/fused_*.cpp", "tests/cpp/happens_before.cpp")
OF_NCCL = ("csrc/gpu/nccl/*.cpp", "tests/cpp/fake_*.cpp", "tests/cpp/nccl_*.cpp")
# Programs that compute for long, and whose tests do not measure time: they run ahead, too.
PATIENT = (
    *("test_bitwise", "test_fixed_text", "test_hostile_plans"),
    *("test_program", "test_reduce", "test_simulate"),
)
# Those that take longest begin first, so that others run beside them to the end.
LONGEST = (
    *("test_shrink_threads", "test_fused_threads", "test_fault_injection"),
    *("test_setup_hosts_threads", "test_setup_threads", "test_shrink_hosts_threads"),
)
CASES = [("address", test) for test in TESTS]
CASES += [("thread", test) for test in TESTS if test.stem.endswith("_threads")]


def core_sources() -> list[Path]:
    """Everything below csrc/torch/ that needs no GPU, in the units that setup.py compiles."""
    csrc = ROOT / "csrc"
    sources = [source for name in CORE for source in (csrc / name).glob("*.cpp")]
    return unity.write(sources, csrc, BUILD / "units")


@functools.cache
def cuda_headers() -> list[Path]:
    """Where cuda_runtime_api.h and nccl.h are, to test csrc/gpu/nccl/ without a GPU."""
    nvcc = _toolchain.find_nvcc()
    nccl = next(iter(_toolchain.in_wheels("nccl/include/nccl.h")), None)
    return [Path(_toolchain.toolkit_root(nvcc)) / "include", nccl.parent] if nvcc and nccl else []


def needs_cuda_headers(test: Path) -> bool:
    return test.stem.startswith("test_nccl")


def needs_ucx(test: Path) -> bool:
    return test.stem.startswith("test_ucx")


def found(*patterns: str) -> list[Path]:
    return sorted(source for pattern in patterns for source in ROOT.glob(pattern))


def parts_of(test: Path) -> list[Path]:
    """The sources that it is linked with besides the libraries: what only some programs need."""
    if needs_cuda_headers(test):
        return found(*OF_FUSED, *OF_NCCL)
    return found(*OF_FUSED) if test.stem.startswith("test_fused") else []


def harness_sources() -> list[Path]:
    """What most programs share, as a library, too."""
    others = {*TESTS, *HELPERS, *found(*OF_FUSED, *OF_NCCL)}
    return [source for source in found("tests/cpp/*.cpp") if source not in others]


def ninja_file() -> str:
    """Says how each test program comes about: the core as a library, so that tests take parts."""
    ucx = _toolchain.find_ucx()
    headers = [*cuda_headers(), *([ucx / "include"] if ucx else [])]
    system = " ".join(f"-isystem {folder}" for folder in headers)
    lines = [
        f"cxx = {os.environ.get('CXX', 'c++')}",
        f"flags = -std=c++20 -O1 -g1 -fno-omit-frame-pointer -Wall -Wextra -pthread "
        f"-I{ROOT}/csrc -I{ROOT}/tests/cpp {system} "
        f"-DUCX_LIBRARIES='\"{_toolchain.ucx_libraries()}\"'",
        "rule compile",
        "  command = $cxx $flags $sanitize $include -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule archive",
        "  command = rm -f $out && ar crs $out $in",
        "rule link",
        # The libraries need each other: see one_mapping.cpp.
        "  command = $cxx $sanitize -pthread -rdynamic -Wl,--start-group $in -Wl,--end-group "
        "-lrt -ldl -o $out",
    ]
    for sanitizer, flags in SANITIZERS.items():
        tests = [test for name, test in CASES if name == sanitizer and (ucx or not needs_ucx(test))]
        tests += HELPERS if sanitizer == "address" else []
        if not tests:
            continue
        parts = {test: parts_of(test) for test in tests}
        objects = {
            source: f"{sanitizer}/{source.relative_to(ROOT)}.o"
            for source in [
                *core_sources(),
                *harness_sources(),
                *itertools.chain(*parts.values()),
                *tests,
            ]
        }
        # Objects name the header that is not there, of which g++ then takes the compiled form.
        header = f"{sanitizer}/precompiled.h"
        lines += [f"build {header}.gch: compile {PRECOMPILED}", f"  sanitize = {flags}"]
        for source, built in objects.items():
            lines += [
                f"build {built}: compile {source} | {header}.gch",
                f"  sanitize = {flags}",
                f"  include = -include {header} -Winvalid-pch",
            ]
        for archive, sources in (("core", core_sources()), ("harness", harness_sources())):
            members = " ".join(objects[source] for source in sources)
            lines.append(f"build {sanitizer}/{archive}.a: archive {members}")
        for test in tests:
            own = " ".join(objects[source] for source in [test, *parts[test]])
            lines += [
                f"build {sanitizer}/{test.stem}: link {own} {sanitizer}/harness.a "
                f"{sanitizer}/core.a",
                f"  sanitize = {flags}",
            ]
    return "\n".join(lines) + "\n"


def missing_for(test: Path) -> str:
    """What the program cannot be built or run without here, or ""."""
    if needs_cuda_headers(test) and not cuda_headers():
        return "no CUDA toolkit, or no NCCL wheel, whose headers it needs"
    if needs_ucx(test) and not _toolchain.find_ucx():
        return "no UCX: its wheel, libucx-cu13 or libucx-cu12, is not installed"
    return ""


def failure_of(*command: str | Path, timeout: int) -> str:
    """Runs a program; why it failed or did not end, with what it printed, or ""."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            status = subprocess.run(
                command,
                cwd=BUILD,
                env=ahead.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            ).returncode
            failure = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            failure = f"no end after {timeout} seconds"
        output.seek(0)
        return f"{command[0]}: {failure}\n{output.read()}" if failure else ""


def run(*command: str | Path, timeout: int) -> None:
    """Runs a program that must not fail."""
    if failure := failure_of(*command, timeout=timeout):
        pytest.fail(failure, pytrace=False)


building = threading.Lock()


def ninja(*targets: str, keep_going: bool = False) -> str:
    """Builds programs; why that failed, or ""."""
    with building:
        BUILD.mkdir(parents=True, exist_ok=True)
        (BUILD / "build.ninja").write_text(ninja_file())
        options = [f"-j{CORES}", *(["-k0"] if keep_going else [])]
        return failure_of(sys.executable, "-m", "ninja", *options, *targets, timeout=3600)


def made_ahead(sanitizer: str, test: Path) -> str:
    """Builds a program, and runs it if it is patient; why that failed, or ""."""
    name = f"{sanitizer}/{test.stem}"
    if missing_for(test):
        return ""
    return build_and_run(name, timeout=1800) if test.stem in PATIENT else ninja(name)


AHEAD = {case: ahead.once(functools.partial(made_ahead, *case)) for case in CASES}


def wanted(session: pytest.Session) -> list[tuple[str, Path]]:
    """The cases of the session's tests, in the order in which their programs begin."""
    cases = [
        (item.callspec.params["sanitizer"], item.callspec.params["test"])
        for item in session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_core"
        and not missing_for(item.callspec.params["test"])
    ]
    # One that runs ahead may still do so, at the lowest priority: it is waited for at the end.
    return sorted(cases, key=lambda case: (case[1].stem in PATIENT, case[1].stem not in LONGEST))


@pytest.fixture(scope="module")
def failures(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, Path], Future[str]]]:
    """What comes of each program: all are built together, then run, two for each core at a time, as
    many of them wait for peers that are dead."""
    cases = wanted(request.session)
    names = {case: f"{case[0]}/{case[1].stem}" for case in cases}
    ninja(*names.values(), keep_going=True)  # what cannot be built says so in its test
    with ThreadPoolExecutor(2 * CORES) as programs:
        yield {
            case: programs.submit(AHEAD[case])
            if case[1].stem in PATIENT
            else programs.submit(build_and_run, name)
            for case, name in names.items()
        }
        programs.shutdown(cancel_futures=True)


def build_and_run(name: str, timeout: int = 1200) -> str:
    return ninja(name) or failure_of(BUILD / name, timeout=timeout)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("sanitizer", "test"),
    [pytest.param(*case, marks=pytest.mark.ahead(made)) for case, made in AHEAD.items()],
    ids=lambda value: getattr(value, "stem", value),
)
def test_core(sanitizer: str, test: Path, failures: dict[tuple[str, Path], Future[str]]) -> None:
    if missing := missing_for(test):
        pytest.skip(missing)
    if failure := failures[sanitizer, test].result():
        pytest.fail(failure, pytrace=False)
