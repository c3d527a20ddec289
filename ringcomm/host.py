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
    """What this process would tell others of its host, so that they try to share memory with it."""
    if name := given_name():
        return f"{name!r}, by RINGCOMM_HOSTID: one with all processes that have the same there"
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = "without boot id"
    return f"{socket.gethostname()}, one with all processes of kernel {kernel} whose memory it sees"
