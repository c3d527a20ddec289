"""The device kernels compile and link without torch; where there is a GPU, they are right."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from ringcomm import _toolchain

ROOT = Path(__file__).resolve().parent.parent
REDUCE = ROOT / "csrc" / "reduce"


@pytest.mark.slow
def test_device_kernels_build_and_run(tmp_path: Path) -> None:
    nvcc = _toolchain.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
    has_gpu = torch.cuda.is_available()
    major, minor = torch.cuda.get_device_capability() if has_gpu else (9, 0)
    program = tmp_path / "test_reduce_device"
    built = subprocess.run(
        [
            nvcc,
            *("-O3", "-std=c++20", f"-arch=sm_{major}{minor}", "-Xptxas=-v", "-o", program),
            *(f"-Xcompiler={flag}" for flag in ("-Wall", "-Wextra")),
            *(f"-I{folder}" for folder in (ROOT / "csrc", ROOT / "tests" / "cpp")),
            ROOT / "tests" / "cpp" / "test_reduce_device.cu",
            *sorted(REDUCE.glob("*.cu")),
            *sorted(REDUCE.glob("*.cpp")),
        ],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
    )
    assert built.returncode == 0, built.stdout
    assert "warning" not in built.stdout, built.stdout
    spills = [int(nbytes) for nbytes in re.findall(r"(\d+) bytes spill stores", built.stdout)]
    assert len(spills) > 100 and max(spills) == 0

    ran = subprocess.run(
        [program], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600
    )
    assert ran.returncode == 0, ran.stdout
