"""What a process says of the host it is on, for others to know whether they may share memory."""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path

from ringcomm.environment import value_of

LONGEST_NAME = 63  # bytes


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
