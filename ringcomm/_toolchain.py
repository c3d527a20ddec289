"""nvcc, its architectures and NVIDIA's wheels: what setup.py builds with and doctor reports.

It needs neither torch nor the extension module; setup.py loads it by its path.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

# Machine code runs on newer minor versions, too: what is for 8.0 on 8.6 and 8.7. 8.9 has more
# instructions, for float8.
# Used if there is no GPU to compile for; newer GPUs compile the last one's PTX at first use.
ARCH_LIST = "8.0;9.0+PTX"  # a build for this machine and its like: each costs 40 seconds of a core
WHEEL_ARCH_LIST = "8.0;8.9;9.0;10.0;12.0+PTX"
# With a version of CUDA behind it, this requires a compiler that fits.
NVCC_WHEELS = "cuda-toolkit[cccl,nvcc]"


def output_of(*command: str) -> str:
    """Standard output and error of a command.

    Raises:
        OSError: the command cannot be started.
        subprocess.CalledProcessError: it fails.
    """
    return subprocess.run(
        command,
        text=True,
        errors="replace",
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ).stdout


def pip_install() -> str:
    """The command that installs into this environment; one that uv has made has no pip."""
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install --python {sys.executable}"
    return f"{sys.executable} -m pip install"


def find_nvcc(torch_cuda: str | None = None) -> str | None:
    """nvcc of CUDA_HOME if that is set, else on PATH, in /usr/local/cuda or in NVIDIA's wheels.

    Args:
        torch_cuda: torch.version.cuda; what does not fit it gives way to what does.
    """
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return shutil.which("nvcc", path=f"{home}/bin")
    folders = [None, "/usr/local/cuda/bin", *map(str, in_wheels("cu*/bin"))]
    found = [nvcc for folder in folders if (nvcc := shutil.which("nvcc", path=folder))]
    if len(found) > 1 and torch_cuda:
        found.sort(key=lambda nvcc: not same_major(nvcc_version(nvcc), torch_cuda))
    return found[0] if found else None


def same_major(version: str, other: str) -> bool:
    """Whether code of these versions of CUDA goes together, such as 13.0.88 and 13.2."""
    return version.split(".")[0] == other.split(".")[0]


def nvcc_version(nvcc: str) -> str:
    """The release of nvcc, such as 13.0.88."""
    found = re.search(r"V(\d+\.\d+\.\d+)", output_of(nvcc, "--version"))
    return found[1] if found else "unknown"


def nvcc_architectures(nvcc: str) -> list[str]:
    """The virtual architectures nvcc knows: compute_80, compute_90, ..."""
    return output_of(nvcc, "--list-gpu-arch").split()


def compression_flag(nvcc_version: str) -> str:
    """Makes nvcc compress machine code, too, which by default it leaves as it is.

    The smallest form is read by the drivers of CUDA 12.4 and newer, so it is for CUDA 13.
    """
    major = nvcc_version.split(".")[0]
    newest = major.isdigit() and int(major) >= 13
    return "--compress-mode=size" if newest else "-Xfatbin=-compress-all"


def toolkit_root(nvcc: str) -> str:
    """The toolkit that nvcc belongs to. nvcc itself says it: the one on PATH may be a wrapper."""
    top = re.search(r"^#\$ TOP=(.+)$", output_of(nvcc, "--dryrun", "-x", "cu", os.devnull), re.M)
    return str(Path(top[1]).resolve() if top else Path(nvcc).resolve().parents[1])


def library_flag(nvcc: str) -> str:
    """What makes nvcc of a wheel find its libraries; one of a toolkit knows where they are."""
    return f"-L{toolkit_root(nvcc)}/lib"


def link_cudart(toolkit: str) -> list[str]:
    """What links CUDA's runtime: of the toolkit, or of a wheel, which has it by its full name."""
    folders = [Path(toolkit, "lib64"), Path(toolkit, "lib"), *in_wheels("cu*/lib")]
    for folder in folders:
        for library in ("libcudart.so", *(path.name for path in folder.glob("libcudart.so.*"))):
            if (folder / library).exists():
                return [f"-L{folder}", f"-l:{library}"]
    return ["-lcudart"]


def cpu_only_reason(torch: str, torch_cuda: str | None, nvcc: str | None) -> str | None:
    """Why CUDA sources are left out of a build; None if they are compiled.

    Args:
        torch: torch.__version__.
        torch_cuda: torch.version.cuda, None for a CPU build.
        nvcc: the version of nvcc, None if there is none.
    """
    if torch_cuda is None:
        return f"torch {torch} is not a CUDA build"
    if nvcc is None:
        return "no nvcc was found in CUDA_HOME, on PATH, in /usr/local/cuda or in NVIDIA's wheels"
    if not same_major(nvcc, torch_cuda):
        return f"nvcc {nvcc} does not fit torch's CUDA {torch_cuda}"
    return None


def trim_arch_list(arch_list: str, known: Collection[str]) -> str:
    """Drops architectures nvcc does not know; a closing +PTX moves to the last that stays.

    Args:
        arch_list: in TORCH_CUDA_ARCH_LIST's form, such as "8.0;9.0+PTX".
        known: what `nvcc_architectures` returns.
    """
    virtual = {entry: "compute_" + re.sub(r"\D", "", entry) for entry in arch_list.split(";")}
    kept = [entry for entry in virtual if virtual[entry] in known]
    if kept and arch_list.endswith("+PTX"):
        kept[-1] = kept[-1].removesuffix("+PTX") + "+PTX"
    return ";".join(kept)


def choose_arch_list(
    capabilities: Collection[tuple[int, int]], known: Collection[str], otherwise: str = ARCH_LIST
) -> str:
    """TORCH_CUDA_ARCH_LIST if set, else the visible GPUs' architectures, else what is given.

    Args:
        capabilities: compute capabilities (major, minor) of the visible GPUs.
        known: what `nvcc_architectures` returns.
        otherwise: in TORCH_CUDA_ARCH_LIST's form; what nvcc does not know of it is left out.
    """
    if requested := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return requested
    native = ";".join(f"{major}.{minor}" for major, minor in sorted(set(capabilities)))
    return trim_arch_list(native, known) or trim_arch_list(otherwise, known)


def in_wheels(pattern: str) -> list[Path]:
    """Paths in NVIDIA's wheels, site-packages/nvidia/<pattern>, wherever Python imports from."""
    nvidia = [glob.escape(os.path.join(place, "nvidia")) for place in _import_folders()]
    return [Path(path) for each in nvidia for path in sorted(glob.glob(f"{each}/{pattern}"))]


def nccl_version(header: Path) -> str:
    """The version that nccl.h declares, such as 2.30.7."""
    numbers = dict(re.findall(r"#define NCCL_(\w+) +(\d+)", header.read_text()))
    return "{MAJOR}.{MINOR}.{PATCH}".format_map(numbers)


def find_ucx() -> Path | None:
    """The folder of UCX's include/: its wheel, wherever Python imports from, else the system's."""
    places = [*(Path(place, "libucx") for place in _import_folders()), Path("/usr")]
    header = "include/ucp/api/ucp.h"
    return next((place for place in places if os.path.exists(place / header)), None)


def ucx_libraries() -> str:
    """The folder of libucp.so.0 in UCX's wheel; empty: where the system has its libraries."""
    places = (Path(place, "libucx", "lib") for place in _import_folders())
    return next((str(place) for place in places if os.path.exists(place / "libucp.so.0")), "")


def _import_folders() -> list[str]:
    """Where Python imports from; it passes over what is no text, as this does.

    Some may be closed to this user. os.path and glob find nothing there, where Path.exists and
    Path.glob raise.
    """
    return [place for place in sys.path if isinstance(place, str)]
