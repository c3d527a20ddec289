"""Names of the jobs on this host: the command, and the process that launched its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from ringcomm.processes import parent_and_start

_LONGEST_COMMAND = 60  # characters
_SHELLS = ("bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh")
_WITH_VALUE = ("-W", "-X")  # options of Python's


@dataclass(frozen=True)
class Job:
    """What a group's ranks were started as.

    Attributes:
        command: the script's name and its arguments, cut to 60 characters; "" if the processes have
            ended.
        launcher: the process that started the ranks, such as torchrun's or mpirun's; a rank's own
            if it was started from a shell.
    """

    command: str
    launcher: int

    def __str__(self) -> str:
        """Such as train.py --lr 0.1 (launcher 4711)."""
        return f"{self.command or 'of processes that have ended'} (launcher {self.launcher})"


def job_of(pids: Sequence[int]) -> Job:
    """The job of the processes that are a group's ranks on this host, the first rank's first."""
    pids = list(dict.fromkeys(pids))
    lines = [line for line in map(list, map(_line_of, pids)) if line]
    if not lines:
        return Job("", pids[0])
    if len(lines) > 1:
        shared = reduce(lambda one, other: [pid for pid in one if pid in other], lines)
    else:
        shared = [pid for pid in lines[0][1:2] if _name_of(pid) not in _SHELLS]
    launcher = next((pid for pid in shared if pid > 1), lines[0][0])
    return Job(_command_of(lines[0][0]), _above_multiprocessing(launcher))


def _line_of(pid: int) -> Iterator[int]:
    """The process, its parent, and so on."""
    while pid > 0 and (parent := _parent_of(pid)) is not None:
        yield pid
        pid = parent


def _parent_of(pid: int) -> int | None:
    try:
        return parent_and_start(pid)[0]
    except OSError:
        return None


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _arguments_of(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return []
    return text.removesuffix("\0").split("\0")


def _above_multiprocessing(pid: int) -> int:
    """The process whose script makes this one, if that is one of Python's multiprocessing."""
    return next((each for each in _line_of(pid) if not _is_multiprocessing(each)), pid)


def _is_multiprocessing(pid: int) -> bool:
    return any(each.startswith("from multiprocessing.") for each in _arguments_of(pid))


def _command_of(pid: int) -> str:
    words = _arguments_of(_above_multiprocessing(pid))
    if words and Path(words[0]).name.startswith("python"):
        words = _without_python(words)
    if words and not words[0].startswith("-"):
        words[0] = Path(words[0]).name
    text = " ".join(words)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= _LONGEST_COMMAND else f"{text[: _LONGEST_COMMAND - 3]}..."


def _without_python(words: list[str]) -> list[str]:
    """From the script, `-m` or `-c` on; Python itself if there is none."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
        at += 2 if words[at] in _WITH_VALUE else 1
    return words[at:] or words
