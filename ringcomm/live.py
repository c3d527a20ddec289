"""What the groups of running jobs are doing: read from their memory, which is never written.

The memory of a group is a file of all its processes (see csrc/shm/layout.h), so the user of
a process can read its groups while it runs, hangs, or is stopped in a debugger.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ringcomm import _C
from ringcomm.chosen import Chosen, SizeClass
from ringcomm.jobs import Job, job_of
from ringcomm.plan.network import Link
from ringcomm.topology import Host
from ringcomm.units import readable_ranks

_COLLECTIVE = re.compile(r" #\d+$")  # how the description of one ends
_MEMORY = re.compile(r"(/memfd:|/dev/shm/)ringcomm-[0-9a-f]{32}( \(deleted\))?")


@dataclass(frozen=True)
class Durations:
    """How long calls took.

    Attributes:
        counts: of calls that took at most as many seconds as `BOUNDS` says and more than the bound
            before, and at last of those that took longer.
        seconds: altogether.
    """

    BOUNDS: ClassVar[tuple[float, ...]] = tuple(4**k / 1e6 for k in range(13))

    counts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class CollectiveTimes:
    """How long a rank's calls of one collective on the host took, but for those that failed.

    Attributes:
        collective: such as "all_reduce".
        waited: for the ranks that had not called it yet; one for each call.
        transferred: from then on. Not of calls that are so small that their data travels with the
            announcement of the call.
    """

    collective: str
    waited: Durations
    transferred: Durations


@dataclass(frozen=True)
class RankStatus:
    """One rank of a group.

    Attributes:
        rank: in the group.
        global_rank: in the default group.
        pid: its process; 0 until it has joined.
        host: the name of its host.
        state: "joining", "running", "stopped" (by a signal or a debugger), "ended" (its process),
            "left" (it has closed the group) or, of a rank on another host, "silent": that
            host has sent no heartbeat for 4 seconds, or for what RINGCOMM_HOST_SILENCE says.
        doing: the collective or message it is in, such as "all_reduce(count=256, dtype=float32,
            op=sum) #17"; empty if none. The number counts the group's collectives on the host. For
            a rank on another host, collectives are known and messages are not.
        waits_for: the rank of the group it waits for; one of them if there are several, None where
            any rank will do or it does not wait.
        waits: seconds it has waited; 0 if it does not. Waits that are over in a millisecond (for
            messages, in 50) are not seen.
        completed: collectives done on the host.
        enqueued_on_device: collectives enqueued on its GPU.
        completed_on_device: of these, those that are done.
        nbytes: bytes of its tensors in collectives on the host, altogether.
        held: bytes of shared memory it has made for the group.
        held_on_device: bytes of its GPU that it holds for the group: what ranks exchange through
            (inboxes, outboxes), and scratch. NCCL's own memory is not in it: NCCL does not say how
            much it takes.
        times: of the collectives that it has called. For a rank on another host, none.
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
    held_on_device: int
    times: tuple[CollectiveTimes, ...] = ()

    @classmethod
    def of(cls, times: Sequence[Mapping[str, Any]], **fields: Any) -> RankStatus:
        """That which dictionaries describe, as JSON holds them."""
        return cls(
            **fields,
            times=tuple(
                CollectiveTimes(
                    each["collective"],
                    *(
                        Durations(tuple(each[name]["counts"]), each[name]["seconds"])
                        for name in ("waited", "transferred")
                    ),
                )
                for each in times
            ),
        )


@dataclass(frozen=True)
class GroupStatus:
    """A group as one of its hosts knows it: its own ranks as they are, others as their hosts say.

    Hosts send each other their state twice a second.

    Attributes:
        name: as torch.distributed describes the group, at most 63 bytes of it, with "?" for control
            characters. Before its first call it is torch's number of the group.
        job: which its ranks on this host belong to.
        complete: whether all ranks have joined.
        failure: why the group is broken; empty if it is not.
        ranks: in order.
        chosen: what it chose when it was made.
        here: the ranks of the group that are on this host.
    """

    name: str
    job: Job
    complete: bool
    failure: str
    ranks: tuple[RankStatus, ...]
    chosen: Chosen
    here: tuple[int, ...]

    def title(self) -> str:
        """Such as group tp, 4 ranks."""
        ranks = f"{len(self.ranks)} rank{'s' if len(self.ranks) > 1 else ''}"
        return f"group {self.name or 'without a name'}, {ranks}"

    def why(self) -> list[str]:
        """Why the group waits: sentences for each rank that holds it up. Empty if none waits."""
        held_up: dict[int, list[RankStatus]] = {}
        in_circle = []
        for rank in self.ranks:
            if rank.waits_for is None or not rank.waits:
                continue
            awaited = at_fault(self.ranks, rank.waits_for)
            if awaited is None:
                in_circle.append(rank)
            else:
                held_up.setdefault(awaited, []).append(rank)
        reasons = [self._reason(self.ranks[rank], held_up[rank]) for rank in sorted(held_up)]
        if in_circle:
            reasons.append(f"{_names(in_circle)} wait for each other.")
        return reasons

    def _reason(self, culprit: RankStatus, waiting: list[RankStatus]) -> str:
        have = "have" if len(waiting) > 1 else "has"
        longest = readable_wait(max(rank.waits for rank in waiting))
        name = f"rank {culprit.global_rank}"
        return (
            f"{_names(waiting)} {have} waited {longest} for {name} (pid {culprit.pid}). "
            f"{name.capitalize()} {_does(culprit, waiting)}."
        )


def at_fault(ranks: Sequence[RankStatus], rank: int) -> int | None:
    """The rank that this one waits for in the end: itself, if for none; None in a circle."""
    passed = set()
    while (next_rank := ranks[rank].waits_for) is not None:
        if rank in passed:
            return None
        passed.add(rank)
        rank = next_rank
    return rank


def _names(ranks: list[RankStatus]) -> str:
    return readable_ranks([rank.global_rank for rank in ranks]).capitalize()


def _does(rank: RankStatus, waiting: list[RankStatus]) -> str:
    """What a rank does while others wait for it, behind its name."""
    is_in = f" in {rank.doing}" if rank.doing else ""
    if rank.state == "ended":
        return f"has ended{is_in}"
    if rank.state == "left":
        return "has closed the group"
    if rank.state == "silent":
        return f"is on host {rank.host}, which does not answer"
    if rank.state == "stopped":
        return f"is stopped{is_in}, by a signal or a debugger"
    if is_in:
        return f"is{is_in}"
    if not all(_COLLECTIVE.search(each.doing) for each in waiting):
        return "is alive but in no call of this group"
    since = f" since #{rank.completed}" if rank.completed else ""
    return f"is alive but has not called a collective of this group{since}"


def readable_wait(seconds: float) -> str:
    """Such as 36.7 s, 12.5 min or 3.2 h."""
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 36000 else f"{seconds / 3600:.1f} h"


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
    return list(_groups_of(_pids()))


def group_of(descriptor: int) -> GroupStatus:
    """The group whose memory is this open file of this process."""
    return _group_of(descriptor, os.getpid(), os.readlink(f"/proc/self/fd/{descriptor}"))


@dataclass(frozen=True)
class OpenGroup:
    """A running group whose memory is open, to be looked at again and again."""

    descriptor: int
    pid: int
    target: str

    def status(self) -> GroupStatus:
        """The group as it is now."""
        return _group_of(self.descriptor, self.pid, self.target)

    def ranks(self) -> tuple[RankStatus, ...]:
        """Its ranks as they are now: the part of its status that changes often."""
        return _ranks_of(_C.view_group(self.descriptor))


@contextlib.contextmanager
def open_groups() -> Iterator[list[OpenGroup]]:
    """The groups that `running` finds, open meanwhile."""
    with contextlib.ExitStack() as stack:
        groups = []
        for group in _opened(_pids()):
            stack.callback(os.close, group.descriptor)
            with contextlib.suppress(RuntimeError):  # of another build
                group.status()
                groups.append(group)
        yield groups


def _pids() -> list[int]:
    return sorted(int(p.name) for p in Path("/proc").glob("[0-9]*"))


def _groups_of(pids: list[int]) -> Iterator[GroupStatus]:
    for group in _opened(pids):
        try:
            yield group.status()
        except RuntimeError:
            continue  # of another build
        finally:
            os.close(group.descriptor)


def _opened(pids: list[int]) -> Iterator[OpenGroup]:
    """Each group's memory once; the caller closes it."""
    seen = set()
    for pid in pids:
        for path, target in _memory_of(pid):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # it has ended meanwhile, or is not ours to look at
            file = os.fstat(descriptor)
            if (file.st_dev, file.st_ino) in seen:
                os.close(descriptor)
                continue
            seen.add((file.st_dev, file.st_ino))
            yield OpenGroup(descriptor, pid, target)


def _group_of(descriptor: int, pid: int, target: str) -> GroupStatus:
    """The group of an open file, which the process has, too; there it leads to the target.

    Raises:
        RuntimeError: it is not the memory of a group of this build.
    """
    found = _C.view_group(descriptor)
    ranks = _ranks_of(found)
    host_of = found["host_of"]
    across = Link(*found["across"])
    chosen = Chosen(
        _hosts(ranks, host_of),
        "memfd" if target.startswith("/memfd:") else "/dev/shm",
        found["engine"] if max(host_of, default=0) else "",
        across.text() if max(host_of, default=0) else "",
        found["tuned_by"],
        found["reproducible"],
        tuple(SizeClass(**one) for one in found["size_classes"]),
    )
    here = _on_this_host(ranks, host_of, pid)
    job = job_of([rank.pid for rank in here if rank.pid] or [pid])
    return GroupStatus(
        found["name"],
        job,
        found["complete"],
        found["failure"],
        ranks,
        chosen,
        tuple(rank.rank for rank in here),
    )


def _ranks_of(found: dict[str, Any]) -> tuple[RankStatus, ...]:
    return tuple(RankStatus.of(**rank) for rank in found["ranks"])


def _hosts(ranks: tuple[RankStatus, ...], host_of: list[int]) -> tuple[Host, ...]:
    members: dict[int, list[RankStatus]] = {}
    for rank, host in zip(ranks, host_of, strict=False):  # of none before all are there
        members.setdefault(host, []).append(rank)
    return tuple(
        Host(members[host][0].host, tuple(rank.global_rank for rank in members[host]))
        for host in sorted(members)
    )


def _on_this_host(ranks: tuple[RankStatus, ...], host_of: list[int], pid: int) -> list[RankStatus]:
    """The ranks of this host, of which pid is one, as far as they can be known here."""
    own = next((rank.rank for rank in ranks if rank.pid == pid), None)
    if own is None:  # its numbers are those of another PID namespace
        return []
    return [rank for rank in ranks if not host_of or host_of[rank.rank] == host_of[own]]


def _memory_of(pid: int) -> list[tuple[str, str]]:
    """Paths of the process's open files that are memory of groups, and what they lead to."""
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
            found.append((str(path), target))
    return found
