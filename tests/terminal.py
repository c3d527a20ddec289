"""A terminal in which a test runs a command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Callable
from pathlib import Path


def environment() -> dict[str, str]:
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, path)), "TERM": "xterm"}


class Terminal:
    """A command in a terminal of 24 lines of 80 columns."""

    def __init__(self, arguments: list[str]) -> None:
        self.said = ""
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            os.execve(arguments[0], arguments, environment())

    def read_until(self, found: Callable[[str], bool]) -> str:
        """What it has said once that is found, or it has ended."""
        with contextlib.suppress(OSError):  # at the end
            while not found(self.said):
                self.said += os.read(self.screen, 65536).decode(errors="replace")
        return self.said

    def press(self, keys: bytes) -> None:
        os.write(self.screen, keys)

    def code(self) -> int:
        self.read_until(lambda said: False)
        os.close(self.screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
