"""A host: namespaces that a process keeps, and how another process enters them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import psutil

PREFIX = "rc-"  # of the names of hosts
SHARED_MEMORY = "2g"  # of each host; only what is used is taken
_LIBC = ctypes.CDLL(None, use_errno=True)
_KINDS = {"mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "net": 0x40000000}
_PID = 0x20000000
# What has ended is reaped by the kernel, as by a host's init. `cat` ends with its standard input,
# and with it, being the first of its process numbers, all that runs on the host.
_KEEP = "echo ready; exec env --ignore-signal=CHLD cat"


def own_directory() -> tempfile.TemporaryDirectory[str]:
    """A new directory. Those of processes that were killed are removed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = re.match(rf"{PREFIX}(\d+)-", path.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(path, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")


class Keeper:
    """Keeps namespaces as long as it is open.

    Args:
        kinds: of namespaces, as options of unshare(1).
        setup: shell commands to run in them first.
    """

    def __init__(self, kinds: list[str], setup: str) -> None:
        fork = ["--fork", "--kill-child"] if "--pid" in kinds else []
        self._process = subprocess.Popen(
            ["unshare", *kinds, *fork, "sh", "-e", "-c", setup + _KEEP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise OSError(self._process.communicate()[1].strip())
        self.pid = self._process.pid
        if fork:
            self.pid = psutil.Process(self.pid).children()[0].pid

    @property
    def closed(self) -> bool:
        return self._process.returncode is not None

    def close(self) -> None:
        if not self.closed:
            self._process.communicate()


class Switch(Keeper):
    """A network of its own, for the bridges between hosts."""

    def __init__(self) -> None:
        super().__init__(["--net"], "")


class Host(Keeper):
    """A machine's view of itself.

    Args:
        name: its host name.
        hosts: the text of its /etc/hosts.
        boot_id: of /proc/sys/kernel/random/boot_id; by default one of its own.
        directory: for files that the host sees in place of the machine's.
    """

    def __init__(self, name: str, hosts: str, boot_id: str | None, directory: Path) -> None:
        own = directory / name
        own.mkdir()
        (own / "hosts").write_text(hosts)
        (own / "boot_id").write_text((boot_id or str(uuid.uuid4())) + "\n")
        setup = f"""
        mount -t proc {PREFIX}proc /proc
        mount -t sysfs {PREFIX}sys /sys
        mount -t tmpfs -o size={SHARED_MEMORY} {PREFIX}shm /dev/shm
        mount --bind {own}/hosts /etc/hosts
        mount --bind {own}/boot_id /proc/sys/kernel/random/boot_id
        hostname {name}
        sysctl -qw net.ipv4.tcp_no_metrics_save=1
        ip link set lo up
        """
        super().__init__(["--net", "--mount", "--uts", "--ipc", "--pid"], setup)


def enter(pid: int) -> None:
    """Puts this process, of one thread, on the host of process `pid`.

    Its children have process numbers of the host; its own stays the machine's.
    """
    kinds = {**_KINDS, "pid": _PID}
    # All are opened first: another /proc is seen after the mounts have changed.
    files = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds}
    directory = os.getcwd()
    for kind, file in files.items():
        if _LIBC.setns(file, kinds[kind]) < 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace of {pid}")
        os.close(file)
    os.chdir(directory)


def run_in(pid: int, command: list[str], text: str | None = None) -> str:
    """Runs the command in the network of process `pid`; returns what it prints.

    Raises:
        OSError: it failed; the text is what it complained of.
    """
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", *command],
        input=text,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}\n{text or ''}")
    return done.stdout
