"""Going on without ranks that died: a new group of those that live.

The ranks agree in the store of the old group (csrc/shm/shrink.cpp says how, and why they cannot
disagree), and make the new group there. Here torch.distributed gets to know the new group.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend, PrefixStore, Store
from torch.distributed import ProcessGroup

from ringcomm import _C
from ringcomm.backend import Made
from ringcomm.groups import bounded, is_open, timeout_of, unwrapped


def shrink(
    group: ProcessGroup | None = None,
    exclude: Sequence[int] | None = None,
    *,
    timeout: timedelta | None = None,
) -> ProcessGroup:
    """Makes a new group of the ranks of `group` that live, in the same order.

    All living ranks call it, but for those in `exclude`. It finds the dead itself: ranks whose
    process has ended or that have destroyed the group, and the ranks of hosts that send no
    heartbeat any more. If a further rank dies meanwhile, the others go on without it, too.

    If hosts are cut off from each other, only one part goes on: the largest that reaches the store,
    and among equal ones the part with the lowest rank.

    The old group ends, with what is under way in it. Where it is the default group, the new one
    takes its place: get_rank() and get_world_size() are the new ones, and all other groups end,
    since their ranks were counted in the old one. What was built on the old group, such as
    DistributedDataParallel, samplers and meshes, must be built again. Results of an interrupted
    operation are undefined.

    Args:
        group: of the backend "ring"; the default group if not given.
        exclude: global ranks of members to leave out although they live, such as one that hangs.
            The same on all ranks that call it.
        timeout: how long to wait for the other ranks; that of `group` if not given.

    Returns:
        The new group, on CPU and CUDA if `group` was.

    Raises:
        TypeError: `group` is not a process group, or has another backend than "ring".
        ValueError: `group` is closed, or this rank is not a member of it or is to be excluded; or
            `exclude` names ranks that are not members.
        torch.distributed.DistBackendError: a living rank did not call it in time, which is named;
            the ranks exclude different ones; the store of the group does not answer, since it lived
            in a rank that died or on a host that is cut off; or the others have gone on without
            this rank. What one rank raises all do. It can be called again.
    """
    old = _ring(group)
    members = dist.get_process_group_ranks(old)
    unknown = [rank for rank in exclude or () if rank not in members]
    if unknown:
        raise ValueError(f"exclude holds {unknown}, and the group's ranks are {members}")
    excluded = sorted({members.index(rank) for rank in exclude or ()})
    device = torch.device(old._device_types[0])
    made, survivors, key = _C.shrink(unwrapped(old._get_backend(device)), excluded, _whole(timeout))
    new = _Successor(old, made, [members[rank] for rank in survivors], key)
    return new.as_default() if old is c10d._get_default_group() else new.beside_default()


def _ring(group: object) -> ProcessGroup:
    """The group, if it can be shrunk."""
    if group is None:
        if not dist.is_initialized():
            raise ValueError("there is no default group to shrink")
        group = c10d._get_default_group()
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not a member of the group to shrink")
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be a torch.distributed process group or None, got {type(group).__name__}"
        )
    if not is_open(group):
        raise ValueError("the process group is closed: it was destroyed")
    config = dist.get_backend_config(group)  # such as cpu:gloo,cuda:nccl
    if {entry.split(":", 1)[1] for entry in config.split(",")} != {"ring"}:
        raise TypeError(
            f'only groups of the backend "ring" can be shrunk, and this one is {config!r}; what '
            'other backends serve cannot go on without its dead ranks. Make it with "ring", such '
            'as torch.distributed.init_process_group("ring")'
        )
    return group


def _whole(timeout: timedelta | None) -> timedelta | None:
    if timeout is None:
        return None
    return timedelta(milliseconds=math.ceil(bounded(timeout).total_seconds() * 1000))


class _Successor:
    """A new group's backend, and what torch.distributed is to know of the group.

    torch adopts the backend as one that was made in the usual way, with the options `Made`.
    """

    def __init__(self, old: ProcessGroup, made: Backend, ranks: list[int], key: str) -> None:
        self.old = old
        self.ranks = ranks  # global, in the old default group
        self.rank = made.rank()
        name, store = c10d._world.pg_map[old]
        self.name = str(name)
        self.store: Store = PrefixStore(f"shrunk {key}", store)
        self.adopt: dict[str, Any] = {
            "timeout": timeout_of(old),
            "device_id": old.bound_device_id,
        }
        self.made = Made(made)

    def as_default(self) -> ProcessGroup:
        for group in list(c10d._world.pg_map):
            # Not in good order, which takes the dead. Not every backend has it.
            with contextlib.suppress(RuntimeError):
                group.abort()
        dist.destroy_process_group()
        dist.init_process_group(
            self.name,
            store=self.store,
            rank=self.rank,
            world_size=len(self.ranks),
            pg_options=self.made,
            **self.adopt,
        )
        return c10d._get_default_group()

    def beside_default(self) -> ProcessGroup:
        name = f"{self.old.group_name} shrunk"
        description = f"{self.old.group_desc} shrunk"
        dist.destroy_process_group(self.old)
        group, _ = c10d._new_process_group_helper(
            len(self.ranks),
            self.rank,
            self.ranks,
            self.name,
            self.store,
            c10d.GroupName(name),
            self.made,
            group_desc=description,
            **self.adopt,
        )
        c10d._world.pg_group_ranks[group] = {rank: at for at, rank in enumerate(self.ranks)}
        assert isinstance(group, ProcessGroup)
        return group
