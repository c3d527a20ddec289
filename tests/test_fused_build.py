"""The fused kernels compile for the oldest and the newest GPUs, and for what is launched there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_reduce_device_build import ROOT, architectures, run

from ringcomm import _toolchain

# For each of the reductions': of lanes, and eager; and two that probe.
NUM_KERNELS = 2 * (22 + 10 + 5) + 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fused_kernels_build(tmp_path: Path) -> None:
    nvcc = _toolchain.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME, in /usr/local/cuda or in NVIDIA's wheels")
    oldest, *_, newest = architectures(nvcc)
    spills: list[int] = []
    for source in sorted((ROOT / "csrc" / "gpu" / "fused").glob("*.cu")):
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


LAUNCHED = """
#include <cstdio>
#include <cstdlib>
#include "gpu/fused/launch.h"
using namespace ringcomm;
int main(int, char** arguments) {
  const KernelKey key{DType::kFloat32, ReduceOp::kSum};
  const int arch = std::atoi(arguments[1]);
  std::printf("%d %d", fused::threads_per_block(key, arch), fused::eager_threads(key));
}
"""


# Without a GPU, which would refuse to launch more than kernels were compiled for.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_as_many_threads_are_launched_as_kernels_have(tmp_path: Path) -> None:
    nvcc = _toolchain.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME, in /usr/local/cuda or in NVIDIA's wheels")
    program = tmp_path / "launched.cpp"
    program.write_text(LAUNCHED)
    include = f"-I{ROOT / 'csrc'}"
    run(nvcc, "-std=c++20", include, program, "-o", tmp_path / "launched")
    oldest, *_, newest = architectures(nvcc)
    found = []
    for sm in (oldest, newest):
        ptx = tmp_path / f"{sm}.ptx"
        source = ROOT / "csrc" / "gpu" / "fused" / "device_float.cu"
        run(nvcc, "-std=c++20", f"-arch=compute_{sm}", include, "-ptx", source, "-o", ptx)
        kernels = re.findall(
            r"entry \S*?(fused|eager)_kernel.*?maxntid (\d+)", ptx.read_text(), re.S
        )
        lanes, eager = run(tmp_path / "launched", f"{sm}0").split()
        assert set(kernels) == {("fused", lanes), ("eager", eager)}
        found.append(lanes)
    assert found[0] != found[1]
