"""What a process says of the host it is on, for others to know whether they may share memory."""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path

from ringcomm.environment import value_of

LONGEST_NAME = 63  # bytes
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_CONTROL_GROUPS = Path("/proc/self/cgroup")


def given_name() -> str:
    """RINGCOMM_HOSTID, or "".

    Raises:
        ValueError: it is too long, or cannot be printed.
    """
    name = value_of("RINGCOMM_HOSTID")
    if (name and not name.isprintable()) or len(name.encode()) > LONGEST_NAME:
        raise ValueError(
            f"RINGCOMM_HOSTID is {name!r}; it must be at most {LONGEST_NAME} bytes that can be "
            "printed"
        )
    return name


def processor() -> str:
    """The name of this host's processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return match[1].strip() if match else platform.machine()


def machine() -> str:
    """What two hosts have alike if they are as fast as each other: "4 x AMD EPYC"."""
    return f"{os.cpu_count()} x {processor()}"


def cpu_quota() -> float | None:
    """The number of cores whose time the control groups leave this process; None: no limit.

    Containers have one by `docker run --cpus` or a limit of Kubernetes, while all cores of the host
    stay visible. See the kernel's cgroup-v2.rst (cpu.max) and sched-bwc.rst (cpu.cfs_quota_us).
    """
    found = []
    for line in _lines_of(_OWN_CONTROL_GROUPS):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [_quota(folder / "cpu.max") for folder in _folders(_CONTROL_GROUPS, path)]
        elif "cpu" in controllers.split(","):
            for folder in _folders(_CONTROL_GROUPS / "cpu", path):
                found.append(_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))
    return min((quota for quota in found if quota is not None), default=None)


def _folders(mounted: Path, path: str) -> list[Path]:
    """A control group's and those of the groups around it, which limit it, too."""
    own = mounted / path.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(mounted)]


def _quota(*files: Path) -> float | None:
    """What is allowed in a period over the period. None: no limit, or no such files."""
    words = [word for file in files for line in _lines_of(file) for word in line.split()]
    if len(words) != 2 or not words[0].isdigit():  # "max", or -1
        return None
    return int(words[0]) / int(words[1])


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def guess() -> str:
    """What this process would publish about its host, by which others share memory with it."""
    if name := given_name():
        return f"{name!r}, by RINGCOMM_HOSTID: one with all processes that have the same there"
    # A name may be any bytes.
    name = os.fsencode(socket.gethostname()).decode(errors="replace") or "a host without a name"
    if kernel := _boot_id():
        return f"{name}, one with all processes of kernel {kernel} whose memory it sees"
    return f"{name}, one with all processes whose memory it sees, of which ranks try it"


def unknown() -> list[str]:
    """A sentence about each thing that this process cannot know of its host."""
    sentences = []
    if not _boot_id():
        sentences.append(
            "the kernel's boot id cannot be read (/proc/sys is hidden): ranks find out who shares "
            "memory by trying. RINGCOMM_HOSTID, different on each host, tells it"
        )
    if not os.path.exists("/proc/self/ns/pid"):
        sentences.append(
            "the namespace of process numbers cannot be read (/proc/self/ns is hidden): a rank "
            "that ends while a group is made is noticed by the time-out"
        )
    if not os.path.exists("/proc/self/stat"):
        sentences.append(
            "the state of processes cannot be read (/proc is hidden): `status` and errors do not "
            "say which rank is stopped"
        )
    return sentences


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
