"""The fused kernels compile for the oldest and the newest GPUs, and for what is launched there."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import ahead
import pytest
from test_reduce_device_build import ROOT, architectures, compiler, run

# For each of the reductions': of lanes, and eager; and two that probe.
NUM_KERNELS = 2 * (22 + 10 + 5) + 2


def oldest_and_newest() -> tuple[str, str]:
    oldest, *_, newest = architectures(compiler())
    return oldest, newest


@ahead.once
def compiled() -> tuple[str, list[str]]:
    """What nvcc says of all kernels, and the PTX of those for floats by architecture."""
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((ROOT / "csrc" / "gpu" / "fused").glob("*.cu")):
            said += run(
                compiler(),
                *("-O3", "-std=c++20", "--threads=0", "-Xptxas=-v", f"-I{ROOT / 'csrc'}"),
                *(f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in oldest_and_newest()),
                *(f"-Xcompiler={flag}" for flag in ("-Wall", "-Wextra")),
                *("--keep", f"--keep-dir={folder}"),
                *("-c", source, "-o", Path(folder, f"{source.stem}.o")),
            )
        kept = [Path(folder, f"device_float.compute_{sm}.ptx") for sm in oldest_and_newest()]
        return said, [path.read_text() for path in kept]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.ahead(compiled)
def test_fused_kernels_build() -> None:
    said, _ = compiled()
    assert "warning" not in said, said
    spills = [int(nbytes) for nbytes in re.findall(r"(\d+) bytes spill stores", said)]
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
@pytest.mark.ahead(compiled)
def test_as_many_threads_are_launched_as_kernels_have(tmp_path: Path) -> None:
    _, ptx = compiled()
    program = tmp_path / "launched.cpp"
    program.write_text(LAUNCHED)
    launched = tmp_path / "launched"
    run(compiler(), "-std=c++20", f"-I{ROOT / 'csrc'}", program, "-o", launched)
    found = []
    for sm, text in zip(oldest_and_newest(), ptx, strict=True):
        kernels = re.findall(r"entry \S*?(fused|eager)_kernel.*?maxntid (\d+)", text, re.S)
        lanes, eager = run(launched, f"{sm}0").split()
        assert set(kernels) == {("fused", lanes), ("eager", eager)}
        found.append(lanes)
    assert found[0] != found[1]
