"""The device kernels compile and link without torch; where there is a GPU, they are right."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import ahead
import pytest
import torch
from gpu_suite.kernels import PROGRAM

from ringcomm import _toolchain

ROOT = Path(__file__).resolve().parent.parent
REDUCE = ROOT / "csrc" / "reduce"
BUILT = ROOT / "build" / "device-tests" / "test_reduce_device"
# Most for three batches of inputs; products and averages of integers for one.
NUM_KERNELS = 22 * 3 + 10 + 5


def run(*command: str | Path, timeout: int = 3600) -> str:
    """Runs a command that has to succeed; its output."""
    ran = subprocess.run(
        command,
        env=ahead.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def architectures(nvcc: str) -> list[str]:
    """What the module is built for where nothing is said: 80, 90, ..."""
    listed = _toolchain.trim_arch_list(
        _toolchain.WHEEL_ARCH_LIST, _toolchain.nvcc_architectures(nvcc)
    )
    return [re.sub(r"\D", "", entry) for entry in listed.split(";")]


def disassembler() -> str | None:
    """cuobjdump of the toolkit, or of triton, which comes with torch's CUDA builds."""
    if found := shutil.which("cuobjdump"):
        return found
    triton = Path(torch.__file__).parents[1] / "triton" / "backends" / "nvidia" / "bin"
    return shutil.which("cuobjdump", path=str(triton))


def functions(sass: str) -> dict[str, list[str]]:
    """The instructions of each kernel in cuobjdump's output."""
    found = {}
    for text in re.split(r"Function : ", sass)[1:]:
        name, _, body = text.partition("\n")
        found[name.strip()] = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", body, re.M)
    return found


def loads_in_flight(instructions: list[str]) -> int:
    """How many 16-byte loads come before the first instruction that waits for one of them."""
    loaded: set[str] = set()
    count = 0
    for instruction in instructions:
        if load := re.search(r"\bLDG\.E\.128\S* R(\d+),", instruction):
            first = int(load[1])
            loaded |= {f"R{first + i}" for i in range(4)}
            count += 1
        elif loaded & set(re.findall(r"\bR\d+\b", instruction)):
            break
    return count


def test_loads_in_flight_are_counted() -> None:
    loads = ["LDG.E.128 R4, desc[UR4][R2.64]", "IADD3 R2, R2, 0x10, RZ", "LDG.E.128 R8, [R2]"]
    assert loads_in_flight([*loads, "FADD R4, R4, R8", "LDG.E.128 R12, [R2]"]) == 2
    assert loads_in_flight([*loads[:1], "FADD R0, R7, R0", *loads[1:]]) == 1


def compiler() -> str:
    nvcc = _toolchain.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME, in /usr/local/cuda or in NVIDIA's wheels")
    return nvcc


@ahead.once
def compiled() -> tuple[str, dict[str, dict[str, list[str]]]]:
    """What nvcc says of the program's kernels; their instructions by architecture.

    There are none where nothing disassembles.
    """
    nvcc = compiler()
    oldest, *_, newest = architectures(nvcc)
    targets = [oldest, "90", newest]  # each takes a minute of a core, and those between are alike
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    said = run(
        nvcc,
        *("-O3", "-std=c++20", "--threads=0", "-Xptxas=-v", "-o", BUILT),
        _toolchain.library_flag(nvcc),
        *(f"-gencode=arch=compute_{sm},code=[sm_{sm},compute_{sm}]" for sm in targets),
        *(f"-Xcompiler={flag}" for flag in ("-Wall", "-Wextra", "-ffp-contract=off")),
        *(f"-I{folder}" for folder in (ROOT / "csrc", ROOT / "tests" / "cpp")),
        *PROGRAM,
        *sorted(REDUCE.glob("*.cu")),
        *sorted(REDUCE.glob("*.cpp")),
    )
    sass = dict.fromkeys(targets, "")
    if cuobjdump := disassembler():
        sass = {sm: run(cuobjdump, "-sass", "-arch", f"sm_{sm}", BUILT) for sm in targets}
    return said, {sm: functions(text) for sm, text in sass.items()}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.ahead(compiled)
def test_device_kernels_build_and_run() -> None:
    said, kernels = compiled()
    assert "warning" not in said, said
    spills = [int(nbytes) for nbytes in re.findall(r"(\d+) bytes spill stores", said)]
    assert len(spills) == NUM_KERNELS * len(kernels) and max(spills) == 0

    for sm, of_one in kernels.items():
        assert len(of_one) == (NUM_KERNELS if disassembler() else 0)
        for name, instructions in of_one.items():
            batch = int(re.search(r"Li(\d)E+v", name)[1])
            assert loads_in_flight(instructions) == max(batch, 4), f"sm_{sm}: {name}"

    run(BUILT, timeout=600)
