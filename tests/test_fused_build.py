"""The fused kernels compile for the oldest and the newest GPUs, without spills."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_reduce_device_build import ROOT, architectures, run

from ringcomm import _toolchain

NUM_KERNELS = 2 * (22 + 10 + 5)  # for each of the reductions': of lanes, and eager


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fused_kernels_build(tmp_path: Path) -> None:
    nvcc = _toolchain.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME, in /usr/local/cuda or in NVIDIA's wheels")
    oldest, *_, newest = architectures(nvcc)
    spills: list[int] = []
    for source in sorted((ROOT / "csrc" / "fused").glob("*.cu")):
        built = run(
            nvcc,
            *("-O3", "-std=c++20", "--threads=0", "-Xptxas=-v", f"-I{ROOT / 'csrc'}"),
            *(f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in (oldest, newest)),
            *(f"-Xcompiler={flag}" for flag in ("-Wall", "-Wextra")),
            *("-c", source, "-o", tmp_path / f"{source.stem}.o"),
        )
        assert "warning" not in built, built
        spills += map(int, re.findall(r"(\d+) bytes spill stores", built))
    assert len(spills) == 2 * NUM_KERNELS and max(spills) == 0
