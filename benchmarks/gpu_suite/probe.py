"""Says what machine this is: GPU, driver, tools, the NCCL that is loaded, and whether MPS runs."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from gpu_suite import device, mps, one_gpu

_QUERY = "--query-gpu=name,driver_version,memory.total,compute_mode,clocks.sm"
_TOOLS = {
    "nvidia-smi": ["nvidia-smi", _QUERY, "--format=csv,noheader"],
    "nvcc": ["nvcc", "--version"],
    "ncu": ["ncu", "--version"],
    "compute-sanitizer": ["compute-sanitizer", "--version"],
    "commit": ["git", "describe", "--always", "--dirty"],
}


def answer(command: list[str]) -> str:
    """The last line that a command prints, or why there is none."""
    try:
        result = subprocess.run(command, text=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"none: {error}"
    lines = (result.stdout or result.stderr).strip().splitlines()
    text = lines[-1] if lines else ""
    return text if result.returncode == 0 else f"none: exit code {result.returncode}: {text}"


def libraries(name: str) -> str:
    """The files that this process has loaded under such a name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return ", ".join(sorted({line.split()[-1] for line in lines if name in line})) or "none"


def facts() -> Iterator[tuple[str, str]]:
    yield "date", datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    yield "system", f"{platform.platform()}, {len(os.sched_getaffinity(0))} cores"
    yield "/dev/shm", f"{shutil.disk_usage('/dev/shm').free >> 20} MiB free"
    for name, command in _TOOLS.items():
        yield name, answer(command)
    yield "Python", sys.version.split()[0]
    yield "torch", f"{torch.__version__}, CUDA {torch.version.cuda}"
    yield "GPUs that torch finds", str(torch.cuda.device_count())
    yield "NCCL", f"{device.nccl_version()}, from {libraries('libnccl')}"
    yield "2 ranks on one GPU", one_gpu.missing(2) or "possible"
    with mps.running() as problem:
        yield "MPS", problem or "runs"


def main() -> int:
    for name, value in facts():
        print(f"{name:<22} {value}")
    if torch.cuda.device_count() == 0:
        print("torch finds no GPU, and everything else here needs one")
        return 1
    print("GPU".ljust(22), device.label())
    return 0


if __name__ == "__main__":
    sys.exit(main())
