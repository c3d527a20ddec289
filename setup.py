"""Builds the extension module ringcomm._C against the torch of the environment installed into.

`pip install -e .` is the command; what this file adds to a plain setuptools build is

* finding that environment's torch, which build isolation hides (packaging/find_torch.py), or asking
  the installer for one where there is none;
* choosing between a CUDA and a CPU-only extension, and saying why (`configure`): with
  RINGCOMM_WITH_CUDA=0 the CUDA half is left out, with 1 it must be possible, and NVIDIA's wheels of
  nvcc are asked for where there is none (`needed_to_build`);
* with RINGCOMM_WITH_TESTS=1, adding ringcomm._C.testing, which tests and benchmarks call;
* a build directory that outlives pip's temporary ones, so that a rebuild compiles what changed;
* what ccache, which torch 2.13 and newer put before the compilers, needs to know objects again;
* sources that belong together, compiled as one (packaging/unity.py);
* where the sources came from, as the metadata's address (packaging/address.py);
* ringcomm/_build_info.py, by which `import ringcomm` recognises a torch it was not built for;
* wheels to be given to others: with RINGCOMM_BUILDS=FOLDER in the environment nothing is built, and
  the wheel has the extension for each torch in FOLDER (`packed`). packaging/wheels.py makes them.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import setuptools
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION = "0.1.0"
TORCH_REQUIREMENT = "torch>=2.11,<2.16"  # the range, never the one torch built against
DEPENDENCIES = ["rich"]  # for the commands
WITH_CUDA = "RINGCOMM_WITH_CUDA"  # environment variables
WITH_TESTS = "RINGCOMM_WITH_TESTS"
BUILDS = "RINGCOMM_BUILDS"
# By these it knows what it has compiled in another clone.
CCACHE = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
FINDS_BACKENDS = (2, 14)
# The time of one core, measured; docs/pages/howto/wheels.md says how.
CPU_SECONDS, CUDA_SECONDS, CUDA_SECONDS_PER_ARCHITECTURE = 150, 50, 65

# Commands that only describe the project; isolated builds run them before torch is there.
METADATA_COMMANDS = {"egg_info", "dist_info", "sdist"}


def load(path: Path) -> ModuleType:
    """Imports one file by its path; the package cannot be imported before it is built."""
    spec = importlib.util.spec_from_file_location(f"ringcomm_setup_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


toolchain = load(ROOT / "ringcomm" / "_toolchain.py")
finding = load(ROOT / "packaging" / "find_torch.py")
unity = load(ROOT / "packaging" / "unity.py")
address = load(ROOT / "packaging" / "address.py")

# ---- Which torch ------------------------------------------------------------------------------


def numbers(version: str) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def check_supported(version: str) -> None:
    """Stops the build, before pip can replace anything, if this torch is not supported."""
    if not OLDEST_TORCH <= numbers(version) <= NEWEST_TORCH:
        raise SystemExit(
            f"ringcomm needs {TORCH_REQUIREMENT}, and torch {version} is installed. "
            f"Install a supported one first: python -m pip install '{TORCH_REQUIREMENT}'"
        )


def needed_to_build(environment: finding.Environment | None) -> list[str]:
    """What an isolated build asks for: a torch where there is none, and nvcc if it must have one.

    That is with RINGCOMM_WITH_CUDA=1, for CUDA 13: wheels of CUDA 12 have no nvcc.
    """
    needed = [] if environment else [TORCH_REQUIREMENT]
    cuda = environment.cuda() if environment else "13"  # whatever the torch to come requires
    if wanted_cuda() and cuda and cuda.startswith("13"):
        sys.path.extend(environment.path if environment else [])
        found = toolchain.find_nvcc(cuda)
        if not found or not toolchain.same_major(toolchain.nvcc_version(found), cuda):
            needed.append(f"{toolchain.NVCC_WHEELS}=={cuda}.*")
    return needed


def entry_points(torch: str | None) -> dict[str, list[str]]:
    """The console command, and by what torch and vLLM find ringcomm.

    Torches that do not look for a backend by its name call what is to register it in every
    `import torch`. The command is here, too: a [project.scripts] would take the place of the rest.
    None is a torch that is not known yet, such as a source distribution's.
    """
    found = {
        "console_scripts": ["ringcomm = ringcomm_command:main"],
        "torch.distributed.backends": ["ring = ringcomm.backend:register"],
        "vllm.general_plugins": ["ringcomm = ringcomm.vllm:register"],
    }
    if torch is None or numbers(torch) < FINDS_BACKENDS:
        found["torch.backends"] = ["ringcomm = ringcomm_autoload:register"]
    return found


def switched_on(name: str) -> bool:
    """Whether the environment variable is 1; 0 or nothing is off."""
    value = os.environ.get(name) or "0"
    if value not in ("0", "1"):
        raise SystemExit(f"{name} is {value!r}; it must be 0 or 1")
    return value == "1"


def wanted_cuda() -> bool | None:
    """Whether the CUDA half is to be built; None: if torch and nvcc make it possible."""
    return switched_on(WITH_CUDA) if os.environ.get(WITH_CUDA) else None


# ---- Choosing what to build -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config:
    """What is built, with what, and why. None stands for what is absent."""

    torch_version: str
    torch_cuda: str | None
    compiler: str
    cpu_only_reason: str | None = None
    cuda_home: str | None = None
    nvcc_version: str | None = None
    arch_list: str | None = None
    nccl_home: str | None = None
    nccl_version: str | None = None

    def summary(self) -> str:
        """The build in four lines, for the build log and `python -m ringcomm doctor`."""
        extension = f"CPU and CUDA, nvcc {self.nvcc_version} for {self.arch_list}"
        if self.cpu_only_reason:
            extension = f"CPU only, because {self.cpu_only_reason}"
        return (
            f"extension  {extension}\n"
            f"torch      {self.torch_version}, CUDA {self.torch_cuda or 'none'}\n"
            f"NCCL       {self.nccl_version or 'none'}\n"
            f"compiler   {self.compiler}"
        )

    def announcement(self) -> str:
        """What will be built, and how long that took elsewhere: a build's first line."""
        extension, seconds = f"the CPU half ({self.cpu_only_reason})", CPU_SECONDS
        if not self.cpu_only_reason:
            images = re.findall(r"\d+\.\d", self.arch_list or "")
            extension = f"the CPU and the CUDA half, for {self.arch_list}"
            seconds += CUDA_SECONDS + len(images) * CUDA_SECONDS_PER_ARCHITECTURE
        return (
            f"ringcomm builds {extension}, for torch {self.torch_version}. That took {seconds} "
            "seconds of a core of an EPYC (Zen 4), less where ccache knows it."
        )

    def build_info(self) -> str:
        """The text of ringcomm/_build_info.py."""
        built_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return (
            '"""What the extension module beside this file was built with, and when."""\n\n'
            f"TORCH_VERSION: str = {self.torch_version!r}\n"
            f"TORCH_CUDA: str | None = {self.torch_cuda!r}\n"
            f"CPU_ONLY_REASON: str | None = {self.cpu_only_reason!r}\n"
            f"NVCC_VERSION: str | None = {self.nvcc_version!r}\n"
            f"ARCH_LIST: str | None = {self.arch_list!r}\n"
            f"NCCL_VERSION: str | None = {self.nccl_version!r}\n"
            f"COMPILER: str = {self.compiler!r}\n"
            f"BUILT_AT: str = {built_at!r}\n"
            f"SUMMARY: str = {self.summary()!r}\n"
        )


def configure() -> Config:
    """Looks at the torch that is importable, at nvcc and at NCCL."""
    import torch

    compiler = toolchain.output_of(*os.environ.get("CXX", "c++").split(), "--version")
    config = Config(
        str(torch.__version__),
        torch.version.cuda,
        compiler.splitlines()[0],
    )
    nvcc = toolchain.find_nvcc(config.torch_cuda)
    nvcc_version = toolchain.nvcc_version(nvcc) if nvcc else None
    reason = toolchain.cpu_only_reason(config.torch_version, config.torch_cuda, nvcc_version)
    if wanted_cuda() is False:
        reason = f"{WITH_CUDA} is 0"
    elif reason and wanted_cuda():
        raise SystemExit(f"{WITH_CUDA} is 1, but {reason}.")
    if reason:
        return dataclasses.replace(config, cpu_only_reason=reason)

    gpus = [torch.cuda.get_device_capability(gpu) for gpu in range(torch.cuda.device_count())]
    nccl_header = next(iter(toolchain.in_wheels("nccl/include/nccl.h")), None)
    return dataclasses.replace(
        config,
        cuda_home=toolchain.toolkit_root(nvcc),
        nvcc_version=nvcc_version,
        arch_list=toolchain.choose_arch_list(gpus, toolchain.nvcc_architectures(nvcc)),
        nccl_home=str(nccl_header.parents[1]) if nccl_header else None,
        nccl_version=toolchain.nccl_version(nccl_header) if nccl_header else None,
    )


# ---- Building it ------------------------------------------------------------------------------


def sources(*suffixes: str) -> list[str]:
    """Sources under csrc/, relative to the project: absolute ones would land outside build/."""
    return sorted(
        str(path.relative_to(ROOT))
        for suffix in suffixes
        for path in ROOT.glob(f"csrc/**/*{suffix}")
    )


def left_out(config: Config) -> tuple[str, ...]:
    """How the paths of sources begin that this configuration cannot compile, or does not need."""
    tests = () if switched_on(WITH_TESTS) else ("csrc/torch/test_bindings",)
    if config.nccl_home:
        return (*tests, "csrc/torch/no_device")
    no_nccl = (*tests, "csrc/gpu/nccl/", "csrc/torch/cuda_")
    return no_nccl if config.cuda_home else (*no_nccl, "csrc/gpu/fused/", "csrc/reduce/device")


def extension(config: Config) -> setuptools.Extension:
    """ringcomm._C as `config` says. No RUNPATH: torch, imported first, has loaded its libraries."""
    if config.cuda_home:
        os.environ["CUDA_HOME"] = config.cuda_home  # read when cpp_extension is imported
        os.environ["TORCH_CUDA_ARCH_LIST"] = str(config.arch_list)
    from torch.utils import cpp_extension

    device_type = "cuda" if config.cuda_home else "cpu"
    include_paths = list(cpp_extension.include_paths(device_type))
    libraries = ["c10", "torch", "torch_cpu", "torch_python"]
    link_args = []
    if config.cuda_home:
        include_paths += map(str, toolchain.in_wheels("*/include"))
        libraries += ["c10_cuda", "torch_cuda"]
        link_args += toolchain.link_cudart(config.cuda_home)
    if config.nccl_home:
        link_args += ["-Wl,--as-needed", f"-L{config.nccl_home}/lib", "-l:libnccl.so.2"]
    system = [flag for path in include_paths for flag in ("-isystem", path)]
    for name, value in CCACHE.items():
        os.environ.setdefault(name, value)
    jobs = os.environ.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))
    macros = [(WITH_CUDA, "1")] if config.cuda_home else []
    macros += [(WITH_TESTS, "1")] if switched_on(WITH_TESTS) else []
    host = ["-fvisibility=hidden", "-Wall", "-Wextra"]
    device = [f"--threads={jobs}", "-lineinfo", *(f"-Xcompiler={flag}" for flag in host)]
    if config.nvcc_version:
        device.append(toolchain.compression_flag(config.nvcc_version))
    return setuptools.Extension(
        "ringcomm._C",
        [source for source in sources(".cpp", ".cu") if not source.startswith(left_out(config))],
        depends=sources(".h", ".cpp"),
        include_dirs=[str(ROOT / "csrc")],
        define_macros=macros,
        libraries=libraries,
        library_dirs=cpp_extension.library_paths(device_type),
        extra_compile_args={
            "cxx": ["-O3", "-g0", "-std=c++20", *host, *system],
            "nvcc": ["-O3", "-std=c++20", *device, *system],
        },
        extra_link_args=link_args,
        language="c++",
    )


def build_command(config: Config) -> type[setuptools.Command]:
    """torch's build_ext, in a directory of the project's own, leaving the build info behind."""
    from torch.utils.cpp_extension import BuildExtension

    class BuildCommand(BuildExtension):  # type: ignore[misc, valid-type]
        def finalize_options(self) -> None:
            super().finalize_options()
            variant = f"{sys.implementation.cache_tag}-torch-{config.torch_version}"
            variant += f"-{config.nvcc_version or 'cpu'}"
            self.build_temp = str(ROOT / "build" / (variant + "-tests" * switched_on(WITH_TESTS)))

        def build_extension(self, extension: setuptools.Extension) -> None:
            cpp = [ROOT / source for source in extension.sources if source.endswith(".cpp")]
            kernels = [source for source in extension.sources if source.endswith(".cu")]
            units = unity.write(cpp, ROOT / "csrc", Path(self.build_temp, "units"))
            extension.sources = kernels + [str(unit.relative_to(ROOT)) for unit in units]
            super().build_extension(extension)

        def run(self) -> None:
            print(config.announcement(), flush=True)
            super().run()
            module = Path(self.get_ext_fullpath("ringcomm._C"))
            for other in module.parent.glob("_C.*.so"):  # one build info describes one module
                if other.name != module.name:
                    other.unlink()
            (module.parent / "_build_info.py").write_text(config.build_info())
            print(config.summary())

    return BuildCommand


# ---- Packing what was built -------------------------------------------------------------------


def builds_required(builds: Path) -> str:
    """The range of torches that FOLDER has builds for, such as torch>=2.11,<2.16.

    Raises:
        SystemExit: there is no build in it.
    """
    minors = sorted(numbers(folder.name) for folder in builds.glob("torch*-*"))
    if not minors:
        raise SystemExit(f"{BUILDS} is {str(builds)!r}, which has no folder torchX.Y-DEVICE")
    (major, first), (_, last) = minors[0], minors[-1]
    return f"torch>={major}.{first},<{major}.{last + 1}"


def packed(builds: Path) -> dict[str, Any]:
    """What setuptools packs the builds by: ringcomm/_builds/, in a wheel for one Python."""

    class Distribution(setuptools.Distribution):
        def has_ext_modules(self) -> bool:
            return True

    class BuildCommand(build_py):
        def run(self) -> None:
            super().run()
            package = Path(self.build_lib, "ringcomm")
            (package / "_build_info.py").unlink(missing_ok=True)  # of a build in this tree
            shutil.copytree(builds, package / "_builds", dirs_exist_ok=True)

    return {"distclass": Distribution, "cmdclass": {"build_py": BuildCommand}}


def main() -> None:
    builds = Path(os.environ[BUILDS]).resolve() if os.environ.get(BUILDS) else None
    environment = None if builds else finding.find_torch()
    if environment:
        check_supported(str(environment.torch))
    build: dict[str, Any]
    if builds:
        build = packed(builds)
    elif METADATA_COMMANDS & set(sys.argv):
        build = {
            "ext_modules": [setuptools.Extension("ringcomm._C", sources(".cpp", ".cu"))],
            "setup_requires": needed_to_build(environment),
        }
    elif environment:
        sys.path.extend(environment.path)
        # Torch would load what it finds the metadata of, such as an older ringcomm's, which may be
        # all of it that is on this path.
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        config = configure()
        build = {
            "ext_modules": [extension(config)],
            "cmdclass": {"build_ext": build_command(config)},
        }
    else:
        raise SystemExit(
            "There is no torch to build ringcomm against. Install one first: "
            f"{sys.executable} -m pip install '{TORCH_REQUIREMENT}'"
        )
    # The licence stands here because pyproject.toml's form of it depends on setuptools' version.
    setuptools.setup(
        license="Apache-2.0",
        version=VERSION,
        project_urls=address.urls(ROOT),
        entry_points=entry_points(
            str(environment.torch) if environment and "sdist" not in sys.argv else None
        ),
        install_requires=[builds_required(builds) if builds else TORCH_REQUIREMENT, *DEPENDENCIES],
        **build,
    )


if __name__ == "__main__":
    main()
