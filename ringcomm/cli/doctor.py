"""python -m ringcomm doctor: what is installed, and in a plain sentence what is wrong with it."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import ringcomm
from ringcomm import _library, _toolchain, host
from ringcomm.environment import NAMES, unknown, value_of

SHARED_MEMORY = "/dev/shm"
SHARED_MEMORY_NEEDED = 64 << 20  # bytes; what a container usually has
SELF_CHECK_TIMEOUT = 60.0  # seconds
# The variables that decide how ranks find each other and send.
_SETTING = re.compile(r"(RINGCOMM|NCCL|GLOO|UCX|CUDA_VISIBLE|OMP_NUM)_?\w*$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="for machines: one JSON object")
    how.add_argument(
        "--report",
        action="store_true",
        help="for an issue: as Markdown, with the settings of the environment, without the names "
        "of this host and of the home directory",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the report. Returns 1 if something is wrong, else 0."""
    problems: list[str] = []
    if options.json:
        found = dict(_checks(problems))
        print(json.dumps({"checks": found, "problems": problems}))
    elif options.report:
        print(_for_an_issue("".join(_lines(problems))))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in _lines(problems, width):
            print(line, end="", flush=True)
    return 1 if problems else 0


def _lines(problems: list[str], width: int | None = None) -> Iterator[str]:
    """The report, whose lines fold between words where that many columns are too few."""
    for name, text in _checks(problems):
        first, *others = (folded for line in text.splitlines() for folded in _fold(line, width, 12))
        yield "\n".join([f"{name:12}{first}", *(f"{'':12}{line}" for line in others)]) + "\n"
    said = [f"Problem: {problem}" for problem in problems] or ["Nothing is wrong."]
    yield "\n" + "\n".join(folded for line in said for folded in _fold(line, width)) + "\n"


def _fold(line: str, width: int | None, indent: int = 0) -> list[str]:
    """Lines that fit beside the indent. A path stays whole, to be copied."""
    if width is None or indent + len(line) <= width:
        return [line]
    return textwrap.wrap(
        line, max(1, width - indent), break_long_words=False, break_on_hyphens=False
    )


def _for_an_issue(text: str) -> str:
    """The report as a block of code, without private names."""
    settings = [
        f"{name}={value}" for name, value in sorted(os.environ.items()) if _SETTING.match(name)
    ]
    text += "\n" + ("\n".join(settings) or "no settings in the environment") + "\n"
    if (home := os.path.expanduser("~")) not in ("/", "~"):  # "~": there is none
        text = text.replace(home, "~")
    if name := platform.node():
        text = re.sub(rf"\b{re.escape(name)}\b", "HOST", text)
    return f"```\n{text}```"


def _checks(problems: list[str]) -> Iterator[tuple[str, str]]:
    """What is found under each name; adds what is wrong to `problems`."""
    checks: dict[str, Callable[[list[str]], str]] = {
        "ringcomm": _version,
        "Python": _python,
        "torch": _torch,
        "CUDA": _cuda,
        "GPUs": _gpus,
        "nvcc": _nvcc,
        "NCCL": _nccl,
        "executor": _executor,
        "hosts": _links,
        "cores": _cores,
        "memory": _shared_memory,
        "host": _host,
        "tuning": _tuning,
        "settings": _settings,
        "build": _build,
        "self-check": _self_check,
    }
    for name, check in checks.items():
        yield name, check(problems)


def _tuning(problems: list[str]) -> str:
    try:
        from ringcomm import tuning
    except ImportError:
        return "not looked for, without the compiled half of ringcomm"
    file = tuning.path()
    if file is None:
        return f"none: {tuning.why_none()}"
    if not tuning.is_named():
        return tuning.state(file)[1]
    try:
        return tuning.describe(file, tuning.read(file))
    except (OSError, ValueError) as error:
        problems.append(f"RINGCOMM_TUNING is {file}, and no group can be made: {error}")
        return "none"


def _settings(problems: list[str]) -> str:
    """The variables of ringcomm's own that are set, and what is wrong with the names of others."""
    problems += unknown()
    return ", ".join(filter(value_of, NAMES)) or "none in the environment"


def _version(problems: list[str]) -> str:
    return f"{ringcomm.__version__}, {Path(ringcomm.__file__).parent}"


def _python(problems: list[str]) -> str:
    return f"{platform.python_version()}, {sys.executable}"


def _torch(problems: list[str]) -> str:
    try:
        import torch
    except ImportError as error:
        install = f"{_toolchain.pip_install()} torch"
        problems.append(f"torch cannot be imported: {error}. Install it: {install}")
        return "none"
    return f"{torch.__version__}, {Path(torch.__file__).parent}"


def _cuda(problems: list[str]) -> str:
    torch = sys.modules.get("torch")
    if torch is None or torch.version.cuda is None:
        return "none: torch is not a CUDA build"
    if torch.cuda.is_available():
        return f"{torch.version.cuda}, usable"
    if Path("/dev/nvidiactl").exists():
        problems.append(
            f"there is an NVIDIA driver, but torch's CUDA {torch.version.cuda} cannot use it; "
            "`nvidia-smi` shows whether the driver is too old"
        )
    return f"{torch.version.cuda}, not usable on this host"


def _gpus(problems: list[str]) -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "none"
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return "\n".join(
        f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}, "
        f"{gpu.total_memory / 2**30:.0f} GiB"
        for gpu in properties
    )


def _nvcc(problems: list[str]) -> str:
    nvcc = _toolchain.find_nvcc()
    if nvcc is None:
        return "none"
    try:
        return f"{_toolchain.nvcc_version(nvcc)}, {nvcc}"
    except (OSError, subprocess.CalledProcessError) as error:
        problems.append(f"{nvcc} does not run: {error}")
        return nvcc


def _nccl(problems: list[str]) -> str:
    """The version of the library that torch has loaded, which need not be that of a wheel."""
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return "none: torch has loaded none"
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    major, rest = divmod(number.value, 10000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}, {_path_of('libnccl.so.2')}"


def _executor(problems: list[str]) -> str:
    """How collectives on GPUs go."""
    if _library.load() is not None:
        return "not known"
    from ringcomm._C import streams

    try:
        return streams.describe_executor(value_of("RINGCOMM_EXECUTOR", "auto"))
    except ValueError as error:
        problems.append(f"RINGCOMM_EXECUTOR: {error}")
        return "not known"


def _links(problems: list[str]) -> str:
    """What will carry bytes between hosts, and what is said of the network."""
    if _library.load() is not None:
        return "not known"
    from ringcomm import links

    try:
        links.heartbeat_timeout()
        if value_of("RINGCOMM_ACROSS"):  # else a tuning's counts, at which _tuning looks
            links.across()
        return f"linked by {links.describe()}"
    except (ValueError, RuntimeError) as error:
        problems.append(str(error))
        return "not linked"


def _path_of(library: str) -> str:
    """Where a loaded library was loaded from."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").split("\n")
    except OSError:
        return "from where is not known"
    paths = [line.split(maxsplit=5)[-1] for line in lines if line.endswith(library)]
    return paths[0] if paths else "linked statically"


def _cores(problems: list[str]) -> str:
    text = f"{len(os.sched_getaffinity(0))} for this process, {os.cpu_count()} in this host"
    if (quota := host.cpu_quota()) is not None:
        text += f"; control groups leave it the time of {quota:g}"
    return text


def _shared_memory(problems: list[str]) -> str:
    """Groups take memory without a name; /dev/shm only where ranks cannot reach each other's."""
    free = None
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        text = f"no {SHARED_MEMORY}: {error}"
    else:
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
        text = f"{SHARED_MEMORY} {size >> 20} MiB, {free >> 20} MiB free"
    if _has_memfds():
        return f"ok; needed only between containers: {text}"
    if free is None:
        problems.append(f"there is no shared memory: no memfd, and {text}")
    elif free < SHARED_MEMORY_NEEDED:
        problems.append(
            f"{SHARED_MEMORY} has {free >> 20} MiB free, there is no memfd, and a group can take "
            f"{SHARED_MEMORY_NEEDED >> 20} MiB. In a container, start it with --shm-size=1g or "
            "--ipc=host"
        )
    return text


def _host(problems: list[str]) -> str:
    try:
        return "\n".join([host.guess(), *host.unknown()])
    except ValueError as error:
        problems.append(str(error))
        return "not to be told"


def _has_memfds() -> bool:
    """Whether memory without a name can be made, and opened by others."""
    try:
        memory = os.memfd_create("ringcomm-doctor")
    except OSError:
        return False
    try:
        os.close(os.open(f"/proc/self/fd/{memory}", os.O_RDWR))
    except OSError:
        return False
    finally:
        os.close(memory)
    return True


def _build(problems: list[str]) -> str:
    if (unusable := _library.load()) is not None:
        problems.append(str(unusable))
    try:
        from ringcomm import _build_info
    except ImportError:
        return "none"
    return f"{_build_info.SUMMARY}\nbuilt      {_build_info.BUILT_AT}"


def _self_check(problems: list[str]) -> str:
    if _library.load() is not None:
        return "not run"
    from ringcomm.launch import RanksFailedError, run_ranks

    with _file_of_errors() as errors:
        try:
            command = ["-m", "ringcomm.cli.self_check"]
            run_ranks(command, 2, timeout=SELF_CHECK_TIMEOUT, stderr=errors)
        except RanksFailedError as failure:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            problems.append(f"the self-check of two ranks failed: {failure}. {lines[-1:]}")
            return "failed\n" + "\n".join(lines[-20:])
    return "two ranks, right sums"


def _file_of_errors() -> IO[bytes]:
    """Without a name, where the self-check writes: in memory if no folder can be written to."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.memfd_create("ringcomm-doctor"), "w+b")
