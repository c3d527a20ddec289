"""Compiles the tests of the reduction kernels, and runs them alone and under compute-sanitizer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = ["-O3", "-std=c++20", "-lineinfo", "-arch=native", "-Xptxas=-v"]
_FOLDERS = [f"-I{ROOT / folder}" for folder in ("csrc", "tests/cpp")]
# Beside csrc/reduce/, what a test of the reductions consists of.
HARNESS = [ROOT / "tests" / "cpp" / name for name in ("check.cpp", "reference.cpp")]
PROGRAM = [ROOT / "tests" / "cpp" / "test_reduce_device.cu", *HARNESS]


def call(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True)


def compiled(directory: Path) -> Path:
    """The program, each of its sources compiled by an nvcc of its own."""
    sources = list(PROGRAM)
    for suffix in ("cu", "cpp"):
        sources += sorted((ROOT / "csrc" / "reduce").glob(f"*.{suffix}"))
    objects = [directory / f"{source.name}.o" for source in sources]
    program = directory / "test_reduce_device"
    with ThreadPoolExecutor() as threads:
        list(
            threads.map(
                lambda source, target: call("nvcc", *_FLAGS, *_FOLDERS, "-c", source, "-o", target),
                sources,
                objects,
            )
        )
    call("nvcc", "-arch=native", *objects, "-o", program)
    return program


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        program = compiled(Path(directory))
        call(program)
        call(
            *("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1"),
            *(program, "each_kernel_stays_within_its_memory"),
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{Path(error.cmd[0]).name} failed with exit code {error.returncode}")
