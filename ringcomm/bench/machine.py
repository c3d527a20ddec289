"""What a measurement was taken on: machine, libraries, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch
from torch.distributed import distributed_c10d

import ringcomm
from ringcomm import _build_info
from ringcomm.host import processor


def describe(device: torch.device, backends: list[str]) -> dict[str, str]:
    """Name and value of all that a reader needs in order to compare figures."""
    found = {
        "ringcomm": f"commit {_commit()}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        "machine": f"{processor()}, {len(os.sched_getaffinity(0))} cores for this process",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load": f"{os.getloadavg()[0]:.2f} over the last minute",
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found["GPU"] = f"{gpu.name}, {torch.cuda.device_count()} in this host"
    if "nccl" in backends:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        found["NCCL"] = f"{'.'.join(map(str, version))}, by torch's {_nccl_backend()}"
    elif _build_info.NCCL_VERSION:
        found["NCCL"] = f"{_build_info.NCCL_VERSION}, not measured"
    if "mpi" in backends:
        from mpi4py import MPI

        library = MPI.Get_library_version().splitlines()[0].split(",")[0]
        found["MPI"] = f"{library.strip()}, mpi4py {importlib.metadata.version('mpi4py')}"
    if "oneccl" in backends:
        from ringcomm.bench import oneccl

        found["oneCCL"] = oneccl.version()
    return found


def _nccl_backend() -> str:
    """Which of torch's backends "nccl" is: torch 2.15 has a newer one, and calls that so."""
    has_newer = hasattr(distributed_c10d, "_create_nccl2_process_group")
    is_newer = has_newer and os.environ.get("TORCH_DIST_USE_NCCL2") != "0"
    return "nccl2" if is_newer else "ProcessGroupNCCL"


def _commit() -> str:
    root = Path(ringcomm.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return "unknown"
    try:
        return subprocess.run(
            ["git", "-C", root, "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
