"""What the groups of running jobs are doing: read from their memory, which is never written.

The memory of a group is a file of all its processes (see csrc/shm/layout.h), so whoever may look at
a process's files can look at its groups, while it runs, hangs, or is stopped in a debugger.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringcomm import _C

_MEMORY = re.compile(r"(/memfd:|/dev/shm/)ringcomm-[0-9a-f]{32}( \(deleted\))?")


@dataclass(frozen=True)
class RankStatus:
    """One rank of a group.

    Attributes:
        rank: in the group.
        global_rank: in the default group.
        pid: its process; 0 until it has joined.
        host: the name of its host.
        state: "joining", "running", "stopped" (by a signal or a debugger), "ended" (its process),
            "left" (it has closed the group) or, of a rank on another host, "silent": nothing has
            been heard of that host for 4 seconds, or what RINGCOMM_HOST_SILENCE says.
        doing: the collective or message it is in, such as "all_reduce(count=256, dtype=float32,
            op=sum) #17"; empty if none. The number counts the group's collectives on the host. Of a
            rank on another host collectives are known, messages are not.
        waits_for: the rank of the group it waits for; one of them if there are several, None where
            any rank will do or it does not wait.
        waits: seconds it has waited; 0 if it does not. Waits that are over in a millisecond (for
            messages, in 50) are not seen.
        completed: collectives done on the host.
        enqueued_on_device: collectives enqueued on its GPU.
        completed_on_device: of these, those that are done.
        nbytes: bytes of its tensors in collectives on the host, altogether.
        held: bytes of shared memory it has made for the group.
    """

    rank: int
    global_rank: int
    pid: int
    host: str
    state: str
    doing: str
    waits_for: int | None
    waits: float
    completed: int
    enqueued_on_device: int
    completed_on_device: int
    nbytes: int
    held: int


@dataclass(frozen=True)
class GroupStatus:
    """A group as one of its hosts knows it: its own ranks as they are, others as their hosts say.

    Hosts tell each other twice a second.

    Attributes:
        name: as torch.distributed describes the group, at most 63 bytes of it, with "?" for control
            characters.
        complete: whether all ranks have joined.
        failure: why the group is broken; empty if it is not.
        ranks: in order.
    """

    name: str
    complete: bool
    failure: str
    ranks: tuple[RankStatus, ...]

    def why(self) -> list[str]:
        """Who holds the group up, a sentence each; empty where nobody waits."""
        waiting = {rank.rank: rank for rank in self.ranks if rank.waits_for is not None}
        awaited = {rank.waits_for for rank in self.ranks if rank.waits_for is not None}
        reasons = []
        for blocker in sorted(awaited - set(waiting)):
            culprit = self.ranks[blocker]
            waiters = _ranks([rank.global_rank for rank in waiting.values()])
            verb = "wait" if len(waiting) > 1 else "waits"
            longest = max(rank.waits for rank in waiting.values())
            is_doing = f"in {culprit.doing}" if culprit.doing else "in no operation of this group"
            reasons.append(
                f"{waiters} {verb} for rank {culprit.global_rank} (pid {culprit.pid}), which is "
                f"{culprit.state} and {is_doing}: {longest:.1f} s"
            )
        if waiting and not reasons:
            found = _ranks([rank.global_rank for rank in waiting.values()])
            reasons.append(f"{found} wait for each other")
        return reasons


def _ranks(ranks: list[int]) -> str:
    """Such as ranks 0, 2 and 5."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def status() -> list[GroupStatus]:
    """The groups this process is a member of, with their ranks on all hosts.

    Returns:
        One for each group of the backend "ring", in the order they were made.
    """
    return list(_groups_of([os.getpid()]))


def running() -> list[GroupStatus]:
    """The groups of all processes of this host that this user may look at.

    A group whose hosts are played on one machine is there once for each.
    """
    return list(_groups_of(sorted(int(p.name) for p in Path("/proc").glob("[0-9]*"))))


def _groups_of(pids: list[int]) -> Iterator[GroupStatus]:
    seen = set()
    for pid in pids:
        for path in _memory_of(pid):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # it has ended meanwhile, or is not ours to look at
            try:
                file = os.fstat(descriptor)
                if (file.st_dev, file.st_ino) in seen:
                    continue
                seen.add((file.st_dev, file.st_ino))
                found = _C.view_group(descriptor)
            except RuntimeError:
                continue  # of another build
            finally:
                os.close(descriptor)
            found["ranks"] = tuple(RankStatus(**rank) for rank in found["ranks"])
            yield GroupStatus(**found)


def _memory_of(pid: int) -> list[str]:
    try:
        paths = sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name))
    except OSError:
        return []
    found = []
    for path in paths:
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if _MEMORY.fullmatch(target):
            found.append(str(path))
    return found
