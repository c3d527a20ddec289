"""Kernels add as reduce_host does: nothing is flushed, nor fused where it is to be rounded."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from own_modules import own
from setup_script import setup_script
from test_reduce_device_build import ROOT, run

from ringcomm import _toolchain

__all__ = ["setup_script"]  # a fixture
SOURCES = sorted((ROOT / "csrc").glob("**/*.cu"))


@pytest.fixture
def nvcc() -> str:
    found = _toolchain.find_nvcc()
    if found is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME, in /usr/local/cuda or in NVIDIA's wheels")
    return found


@pytest.fixture
def flags(setup_script: ModuleType, nvcc: str, monkeypatch: pytest.MonkeyPatch) -> list[str | Path]:
    """What setup.py passes to nvcc."""
    its_own = own(os, environ=os.environ.copy())  # which it adds to
    monkeypatch.setattr(setup_script, "os", its_own)
    config = setup_script.configure()
    if config.cuda_home is None:
        pytest.skip(f"a build for CPUs only, because {config.cpu_only_reason}")
    return [
        *setup_script.extension(config).extra_compile_args["nvcc"],
        f"-I{ROOT / 'csrc'}",
        "-arch=sm_90",
    ]


def compilations(nvcc: str, *arguments: str | Path) -> list[str]:
    """The commands by which nvcc would compile for a device."""
    commands = run(nvcc, *arguments, "--dryrun", "-c", "-o", "unwritten.o").splitlines()
    return [command for command in commands if "/cicc" in command]


@pytest.mark.parametrize(
    "source", SOURCES, ids=lambda source: f"{source.parent.name}-{source.stem}"
)
def test_subnormals_are_not_flushed(source: Path, nvcc: str, flags: list[str | Path]) -> None:
    commands = compilations(nvcc, *flags, source)
    assert commands and all("-ftz=0 -prec_div=1 " in command for command in commands)
    assert all("-ftz=1" in c for c in compilations(nvcc, *flags, "-use_fast_math", source))


PREMUL_SUM = """
#include "reduce/functors.h"
using namespace ringcomm;
template <typename T, DType dtype>
__device__ void add(const T* own, T* sum, T factor) {
  *sum = combine<dtype, ReduceOp::kSum>(*sum, rounded<dtype>(scaled(*own, factor)));
}
__global__ void add32(const float* own, float* sum, float factor) {
  add<float, DType::kFloat32>(own, sum, factor);
}
__global__ void add64(const double* own, double* sum, double factor) {
  add<double, DType::kFloat64>(own, sum, factor);
}
"""


# The other ranks receive the product rounded.
def test_a_product_is_rounded_before_it_is_added(
    nvcc: str, flags: list[str | Path], tmp_path: Path
) -> None:
    source, ptx = tmp_path / "premul_sum.cu", tmp_path / "premul_sum.ptx"
    source.write_text(PREMUL_SUM)
    run(nvcc, *flags, "-ptx", source, "-o", ptx)
    text = ptx.read_text()
    assert "fma" not in text and ".ftz" not in text
    for width in (32, 64):
        assert f"mul.rn.f{width}" in text and f"add.f{width}" in text
