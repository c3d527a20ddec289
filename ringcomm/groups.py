"""Groups: joining one, making one, and the one of "ring" that rides on one of another backend."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend, Store
from torch.distributed import ProcessGroup

from ringcomm._fast_path import remember
from ringcomm.launchers import launched as launched
from ringcomm.launchers import rendezvous
from ringcomm.options import Options
from ringcomm.plan.algorithms import RanksPerHost

LONGEST_TIMEOUT = timedelta(days=100 * 365)  # no wait takes longer


def init(
    timeout: timedelta | None = None,
    *,
    algorithm: str | Mapping[str, str] | None = None,
    ranks_per_host: RanksPerHost | None = None,
    reproducible: str | None = None,
    check_finite: bool | None = None,
) -> ProcessGroup:
    """Makes this process a rank of the default group; all ranks call it.

    Without a default group, makes one of the backend "ring" from the environment of torchrun, Open
    MPI, MPICH (Intel MPI) or srun; with none of these, a world of this one process. On one host,
    ranks of the last three need nothing else; on several, MASTER_ADDR and MASTER_PORT. If there is
    a default group, of "ring" or another backend, it stays as it is. Calling it again is harmless.

    Args:
        timeout: how long an operation may take, in a group that this call makes. If not given,
            that of the group it rides on, or torch.distributed's 30 minutes.
        algorithm: of the collectives; see `ringcomm.Options`.
        ranks_per_host: which ranks share a host; see `ringcomm.Options`.
        reproducible: "ranks" if the bits of sums are to depend on values alone, or "world"; see
            `ringcomm.Options`.
        check_finite: whether NaN and infinity are errors; see `ringcomm.Options`.

    Returns:
        The default group if its CPU backend is "ring", else the group of "ring" that rides on it.

    Raises:
        ValueError: the environment is incomplete; the message names the missing variables. Or there
            is a default group, or one of "ring" on it, and options are given.
        torch.distributed.DistBackendError: not all ranks came in time.
    """
    options = _options(algorithm, ranks_per_host, reproducible, check_finite)
    timeout = bounded(timeout)
    if not dist.is_initialized():
        found = rendezvous(timeout)
        dist.init_process_group("ring", timeout=timeout, pg_options=options, **found)
        return _known(ring_group(None))
    group = c10d._get_default_group()
    if options is not None and (_backend_for_cpu(group) == "ring" or group in _riding):
        raise ValueError(
            f"there is a default group already, and it cannot be given {options!r} any more; "
            "ringcomm.new_group(algorithm=...) makes another group that has it"
        )
    return _known(ring_group(None, timeout, options))


def init_process_group(
    backend: str | None = "ring",
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: object | None = None,
    device_id: torch.device | int | None = None,
    *,
    enable_reconfigure: bool = False,
) -> None:
    """torch.distributed.init_process_group with the backend "ring".

    `init` needs none of these, and knows more launchers.

    Args:
        backend: of the default group; with None, torch's choice for each device.
        init_method: where the ranks meet; "env://" if neither it nor a store is given.
        timeout: how long an operation may take; torch.distributed's 30 minutes if not given.
        world_size: how many ranks there are.
        rank: of this process.
        store: where the ranks meet, in place of init_method.
        group_name: as torch.distributed takes it, which has no use for it.
        pg_options: the backend's own options; for "ring" a `ringcomm.Options`.
        device_id: the one device whose tensors the group sends.
        enable_reconfigure: the group gets its members later. Where torch has it, from 2.14 on.

    Raises:
        ValueError: there is a default group already, or arguments or variables are missing.
        torch.distributed.DistBackendError: not all ranks came in time.
    """
    newer: dict[str, Any] = {"enable_reconfigure": True} if enable_reconfigure else {}
    dist.init_process_group(
        backend,
        init_method,
        bounded(timeout),
        world_size,
        rank,
        store,
        group_name,
        pg_options,
        device_id,
        **newer,
    )


def bounded(timeout: Any) -> Any:
    """The timeout, but no more than a century.

    Python, torch and its stores add timeouts to the time of a clock, in nanoseconds of 64 bits. The
    sum of a longer one is in the past.
    """
    return min(timeout, LONGEST_TIMEOUT) if isinstance(timeout, timedelta) else timeout


def _known(ring: ProcessGroup) -> ProcessGroup:
    """The ring of the default group, whose calls may be fast from now on."""
    remember(None, ring)
    return ring


def _options(
    algorithm: str | Mapping[str, str] | None,
    ranks_per_host: RanksPerHost | None,
    reproducible: str | None,
    check_finite: bool | None,
) -> Options | None:
    given = (algorithm, ranks_per_host, reproducible, check_finite)
    if given == (None,) * len(given):
        return None
    return Options(algorithm, ranks_per_host, reproducible=reproducible, check_finite=check_finite)


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = "ring",
    pg_options: object | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: torch.device | None = None,
    sort_ranks: bool = True,
    *,
    algorithm: str | Mapping[str, str] | None = None,
    ranks_per_host: RanksPerHost | None = None,
    reproducible: str | None = None,
    check_finite: bool | None = None,
) -> ProcessGroup | Any:
    """torch.distributed.new_group with the backend "ring".

    All ranks of the default group call it, members or not, unless use_local_synchronization is set.

    Args:
        ranks: global ranks of the members; all if not given.
        timeout: how long an operation may take; torch.distributed's 30 minutes if not given.
        backend: of the new group.
        pg_options: the backend's own options; for "ring" a `ringcomm.Options`.
        use_local_synchronization: only the members call it.
        group_desc: a description, for torch.distributed's logs.
        device_id: the one device whose tensors the group sends.
        sort_ranks: ranks of the group are in the order of global ranks, not in that of `ranks`.
            Where torch has it, from 2.14 on.
        algorithm: of the collectives, instead of pg_options; see `ringcomm.Options`.
        ranks_per_host: which ranks share a host; see `ringcomm.Options`.
        reproducible: "ranks" if the bits of sums are to depend on values alone, or "world"; see
            `ringcomm.Options`.
        check_finite: whether NaN and infinity are errors; see `ringcomm.Options`.

    Returns:
        The group; on ranks outside of it, torch.distributed's GroupMember.NON_GROUP_MEMBER. Its
        type lets both be passed on as `group`.

    Raises:
        ValueError: there is no default group, ranks are repeated or out of range, there are both
            pg_options and one of the options, or group_desc holds a lone surrogate.
    """
    options = _options(algorithm, ranks_per_host, reproducible, check_finite)
    if options is not None and pg_options is not None:
        raise ValueError(f"either pg_options or {options!r} can be given, got both")
    if ranks is not None and len(set(ranks)) < len(ranks):  # which old versions of torch let pass
        raise ValueError(f"new_group: there are duplicate ranks in {list(ranks)}")
    if group_desc is not None and not _is_utf8(group_desc):
        raise ValueError(
            f"group_desc must be text that UTF-8 can encode, without lone surrogates, got "
            f"{group_desc!r}"
        )
    newer = {} if sort_ranks else {"sort_ranks": False}
    group: ProcessGroup | Any = dist.new_group(
        ranks,
        bounded(timeout),
        backend,
        pg_options if options is None else options,
        use_local_synchronization=use_local_synchronization,
        group_desc=group_desc,
        device_id=device_id,
        **newer,
    )
    return group


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    backend: str | None = "ring",
    pg_options: object | None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup, list[ProcessGroup | Any]]:
    """torch.distributed.new_subgroups with the backend "ring": groups of equal size.

    Args:
        group_size: ranks in each; as many as this host has accelerators if not given.
        group: what is divided, in the order of its ranks; the default group if not given.
        timeout: as for `new_group`, as are those that follow.
        backend: of the new groups.
        pg_options: the backend's own options; for "ring" a `ringcomm.Options`.
        group_desc: a description of each.

    Returns:
        This rank's group, and all of them.

    Raises:
        ValueError: the group cannot be divided so, or there are no accelerators to count.
    """
    return dist.new_subgroups(group_size, group, bounded(timeout), backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: list[list[int]],
    timeout: timedelta | None = None,
    backend: str | None = "ring",
    pg_options: object | None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | Any, list[ProcessGroup | Any]]:
    """torch.distributed.new_subgroups_by_enumeration with the backend "ring".

    Args:
        ranks_per_subgroup_list: global ranks of the members of each group; a rank is in one of them
            or in none.
        timeout: as for `new_group`, as are those that follow.
        backend: of the new groups.
        pg_options: the backend's own options; for "ring" a `ringcomm.Options`.
        group_desc: a description of each.

    Returns:
        This rank's group, None where it is in none, and all of them.

    Raises:
        ValueError: there are no groups, or a rank is in two.
    """
    return dist.new_subgroups_by_enumeration(
        ranks_per_subgroup_list, bounded(timeout), backend, pg_options, group_desc
    )


def set_timeout(timeout: timedelta, group: ProcessGroup | None = None) -> None:
    """How long operations that begin later may take, in a group and in the one of "ring" on it.

    Args:
        timeout: for each operation.
        group: the default group if not given.

    Raises:
        ValueError: this rank is not in the group, or there is no default group.
    """
    if group is None:
        group = c10d._get_default_group()
    if c10d._rank_not_in_group(group):
        raise ValueError("this rank is not in the group whose timeout is to be set")
    for one in (group, _riding.get(group)):
        if one is not None:
            one.set_timeout(bounded(timeout))


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Closes a group and the one of "ring" that rides on it; all groups if none is given.

    Operations still under way, and later ones, raise.

    Raises:
        ValueError: the group is closed already.
    """
    if group is not None and (riding := _riding.pop(group, None)):
        dist.destroy_process_group(riding)
    dist.destroy_process_group(group)


# The rings that ride on groups of other backends. A ring lives as long as its group, or until
# the default group is destroyed, which closes every group.
_riding: weakref.WeakKeyDictionary[ProcessGroup, ProcessGroup] = weakref.WeakKeyDictionary()


def is_open(group: ProcessGroup) -> bool:
    """Whether torch.distributed knows the group: it was made, and not destroyed."""
    return group in c10d._world.pg_map


def ring_group(
    group: object, timeout: timedelta | None = None, options: Options | None = None
) -> ProcessGroup:
    """The group whose CPU backend is "ring": `group` itself, or one that rides on it.

    The latter is made once, by the first call, which all members must make: it has the ranks of
    `group` and finds them through its store.

    Args:
        group: the default group if None. NON_GROUP_MEMBER is returned as it is.
        timeout: of a ring that this call makes; that of `group` if not given.
        options: of a ring that this call makes.

    Raises:
        TypeError: `group` is not a process group.
        ValueError: `group` is closed, or there is no default group.
    """
    if group is None:
        if not dist.is_initialized():
            raise ValueError(
                "there is no default group; call ringcomm.init() or "
                "torch.distributed.init_process_group() first"
            )
        group = c10d._get_default_group()
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return cast(ProcessGroup, group)
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be a torch.distributed process group or None, got {type(group).__name__}"
        )
    if not is_open(group):
        raise ValueError("the process group is closed: it was destroyed")
    if _backend_for_cpu(group) == "ring":
        return group
    ring = _riding.get(group)
    if ring is None:
        ring = _riding[group] = _ride_on(group, timeout or timeout_of(group), options)
        weakref.finalize(group, _close, weakref.ref(ring)).atexit = False
    if not is_open(ring):
        raise ValueError("the ring on the process group is closed: it was destroyed")
    return ring


def _backend_for_cpu(group: ProcessGroup) -> str | None:
    config = dist.get_backend_config(group)  # such as cpu:gloo,cuda:nccl
    return dict(entry.split(":", 1) for entry in config.split(",")).get("cpu")


def _ride_on(group: ProcessGroup, timeout: timedelta, options: Options | None) -> ProcessGroup:
    # torch.distributed.new_group would count this group on its members alone, and the names that
    # it later gives to other groups would differ between ranks. So the name comes from `group`.
    ranks = dist.get_process_group_ranks(group)
    ring, _ = c10d._new_process_group_helper(
        len(ranks),
        group.rank(),
        ranks,
        "ring",
        group.get_group_store(),
        c10d.GroupName(f"ring on {group.group_name}"),
        options,
        timeout=timeout,
        group_desc=f"ring on {group.group_desc}",
    )
    c10d._world.pg_group_ranks[ring] = {rank: index for index, rank in enumerate(ranks)}
    assert isinstance(ring, ProcessGroup)
    return ring


def unwrapped(backend: Backend) -> Backend:
    """The backend inside of the wrapper that TORCH_DISTRIBUTED_DEBUG=DETAIL puts around it."""
    return cast(Backend, getattr(backend, "wrapped_pg", backend))


def timeout_of(group: ProcessGroup) -> timedelta:
    """The timeout that the group was made with, if its backend has it."""
    backend = unwrapped(group._get_backend(group._device_types[0]))
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout or c10d.default_pg_timeout


def _close(ring: weakref.ref[ProcessGroup]) -> None:
    group = ring()
    if group is not None and is_open(group):
        dist.destroy_process_group(group)
