"""The reductions compile for AArch64 and run there: what the compiler makes of portable code."""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ahead
import pytest
from gpu_suite.kernels import HARNESS
from test_reduce_device_build import REDUCE, ROOT, run

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
TESTS = [ROOT / "tests" / "cpp" / f"test_reduce{part}.cpp" for part in ("", "_agreement")]
SHARED = [*sorted(REDUCE.glob("*.cpp")), *HARNESS]


@ahead.once
def ran() -> None:
    missing = [program for program in (COMPILER, EMULATOR) if not shutil.which(program)]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} on PATH, to compile for AArch64 and run that")
    with tempfile.TemporaryDirectory() as folder:
        compile_and_run(Path(folder))


def compile_and_run(folder: Path) -> None:
    def compiled(source: Path) -> Path:
        built = folder / f"{source.stem}.o"
        optimised = "-O3" if source.parent == REDUCE else "-O1"
        folders = [f"-I{include}" for include in (ROOT / "csrc", ROOT / "tests" / "cpp")]
        warnings = ("-Wall", "-Wextra", "-Werror")
        run(COMPILER, "-std=c++20", optimised, *warnings, *folders, "-c", source, "-o", built)
        return built

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers:
        objects = list(compilers.map(compiled, [*TESTS, *SHARED]))
    for test, own in zip(TESTS, objects, strict=False):
        program = folder / test.stem
        run(COMPILER, "-static", own, *objects[len(TESTS) :], "-o", program)
        run(EMULATOR, program)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.ahead(ran)
def test_reductions_run_on_aarch64() -> None:
    ran()
