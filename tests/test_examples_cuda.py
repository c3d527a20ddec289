"""The kernels of examples/cuda/ compile for GPUs, and are right on threads of the host.

There they run under ThreadSanitizer, which has to notice when a wait, a barrier or a memory order
is left out.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ahead
import pytest
import torch

from ringcomm import _toolchain

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "cuda"
PROGRAMS = ROOT / "build" / "examples-tests"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("?_*.cu"))
NUM_GPUS = torch.cuda.device_count()
NVCC = _toolchain.find_nvcc()
LARGEST_NBYTES = 4096  # of a buffer on the host: up to 16 slices per chunk
SECONDS = 60  # for a program that takes one on a machine with nothing else to do

needs_nvcc = pytest.mark.skipif(
    NVCC is None, reason="no nvcc on PATH, in CUDA_HOME, in /usr/local/cuda or in NVIDIA's wheels"
)

# What is left out of which example: text of its source, each time there once, and what is put in
# its place.
LEFT_OUT = {
    ("4_slices", "wait_for_data"): ("await(counter_of(group, rank, lane, kSent), message);", ""),
    ("4_slices", "wait_for_slot"): (
        "await(counter_of(group, rank, lane, kTaken), message - kNumSlots);",
        "",
    ),
    ("4_slices", "barrier_before_sent"): (
        "__syncthreads();\n\n      if (threadIdx.x == 0) {\n        publish(",
        "if (threadIdx.x == 0) {\n        publish(",
    ),
    ("4_slices", "barrier_before_taken"): (
        "__syncthreads();\n      if (threadIdx.x == 0) publish(",
        "if (threadIdx.x == 0) publish(",
    ),
    ("4_slices", "release"): ("cuda::std::memory_order_release", "cuda::std::memory_order_relaxed"),
    ("4_slices", "acquire"): ("cuda::std::memory_order_acquire", "cuda::std::memory_order_relaxed"),
    ("5_fused", "wait_for_data"): (
        "if (receives) came = await(group, sent, done, previous, patience_s);",
        "",
    ),
    ("5_fused", "wait_for_slot"): (
        "if (came && sends) came = await(group, taken, done + 1 - kNumSlots, next, patience_s);",
        "",
    ),
    ("5_fused", "barrier_before_both"): (
        "__syncthreads();\n\n      if (threadIdx.x == 0) {\n        if (sends) publish(",
        "if (threadIdx.x == 0) {\n        if (sends) publish(",
    ),
    ("5_fused", "release"): ("cuda::std::memory_order_release", "cuda::std::memory_order_relaxed"),
    ("5_fused", "acquire"): ("cuda::std::memory_order_acquire", "cuda::std::memory_order_relaxed"),
}


@dataclass(frozen=True)
class Build:
    example: str
    arch: str = "host"  # or what nvcc's -arch takes
    without: str = ""  # the part that is left out

    def __str__(self) -> str:
        return f"{self.example}-without_{self.without}" if self.without else self.example


def execute(*command: str | Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a command; standard error comes with standard output."""
    return subprocess.run(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        env=ahead.environment(TSAN_OPTIONS="halt_on_error=1"),  # the first report ends the program
    )


def compile_program(build: Build) -> tuple[Path, str]:
    """The program, and what the compiler said."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    source = FOLDER / f"{build.example}.cu"
    if build.without:
        text, instead = LEFT_OUT[build.example, build.without]
        whole = source.read_text()
        assert whole.count(text) == 1, f"{source} has changed: {text}"
        source = PROGRAMS / f"{build}.cu"
        source.write_text(whole.replace(text, instead))
    command = ["-std=c++20", f"-I{FOLDER}"]
    if build.arch == "host":
        command = [os.environ.get("CXX", "c++"), *command, "-O1", "-g1", "-fsanitize=thread"]
        command += ["-Wall", "-Wextra", "-pthread", "-x", "c++"]
    else:
        nvcc = NVCC or "nvcc"
        command = [nvcc, *command, "-O3", f"-arch={build.arch}", "-Xptxas=-v"]
        command += ["-Xcompiler=-Wall,-Wextra", _toolchain.library_flag(nvcc)]
    program = PROGRAMS / f"{build}-{build.arch}"
    ran = execute(*command, source, "-o", program, timeout=900)
    assert ran.returncode == 0, ran.stdout
    return program, ran.stdout


@functools.cache
def compiled(build: Build) -> ahead.once[tuple[Path, str]]:
    return ahead.once(functools.partial(compile_program, build))


def of_each(builds: Iterable[Build]) -> Any:
    """A test's parameter, compiled ahead where that is possible."""
    possible = {"host": True, "native": bool(NVCC and NUM_GPUS)}
    return pytest.mark.parametrize(
        "build",
        [
            pytest.param(build, id=str(build), marks=pytest.mark.ahead(compiled(build)))
            if possible.get(build.arch, NVCC is not None)
            else pytest.param(build, id=str(build))
            for build in builds
        ],
    )


@pytest.mark.parametrize("world_size", [2, 3, 4])
@of_each(Build(example) for example in EXAMPLES)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_right_on_host(build: Build, world_size: int) -> None:
    program, said = compiled(build)()
    assert "warning" not in said, said
    ran = execute(program, str(world_size), str(LARGEST_NBYTES), timeout=SECONDS)
    assert ran.returncode == 0, ran.stdout
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["nbytes", "time", "us", "algbw", "GB/s", "busbw", "GB/s"]
    assert [int(row.split()[0]) for row in lines[1:-1]] == [0, 4, 28, 1012, 4084, 4096]
    assert lines[-1] == f"{world_size} ranks: right"


@of_each(Build(example, without=part) for example, part in LEFT_OUT)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_left_out_is_noticed(build: Build) -> None:
    program, _ = compiled(build)()
    # As a rule by the first run; the sanitizer remembers a few accesses to each place.
    assert any(is_noticed(program) for _ in range(3))


def is_noticed(program: Path) -> bool:
    try:
        # With two ranks no rank can get so far ahead that a slot is still in use.
        ran = execute(program, "3", str(LARGEST_NBYTES), timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return True
    if ran.returncode == 0:
        return False
    assert "data race" in ran.stdout or re.search(r"rank \d has", ran.stdout), ran.stdout
    return True


@of_each([Build("5_fused")])
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_missing_rank_is_named(build: Build) -> None:
    program, _ = compiled(build)()
    ran = execute(program, "4", str(LARGEST_NBYTES), "2", "5", timeout=SECONDS)
    assert ran.returncode == 1, ran.stdout
    waits = re.findall(r"^rank (\d) was waiting for rank (\d) when", ran.stdout, re.M)
    assert waits == [("0", "3"), ("1", "2"), ("3", "2")], ran.stdout


@needs_nvcc
@of_each(Build(example, "sm_90") for example in EXAMPLES)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_builds_for_gpu(build: Build) -> None:
    program, said = compiled(build)()
    assert "warning" not in said, said
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)
    assert spills == [("0", "0")], said
    if NUM_GPUS == 0:
        ran = execute(program, "2", timeout=SECONDS)
        assert ran.returncode == 1, ran.stdout
        assert re.fullmatch(r"cudaGetDeviceCount\(&num_devices\): error \d+, .+\n", ran.stdout)


@needs_nvcc
@pytest.mark.skipif(NUM_GPUS == 0, reason="torch finds no GPU")
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@of_each(Build(example, "native") for example in EXAMPLES)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_right_on_gpu(build: Build, world_size: int) -> None:
    program, _ = compiled(build)()
    ran = execute(program, str(world_size), str(4 << 20), timeout=SECONDS)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.endswith(f"{world_size} ranks: right\n")


def test_readme_lists_examples() -> None:
    listed = re.findall(r"^\| \[(\d_\w+)\]\(\1\.cu\) \|", (FOLDER / "README.md").read_text(), re.M)
    assert listed == EXAMPLES
