"""The torch.distributed backend "ring": what `import ringcomm` registers."""

from __future__ import annotations

import atexit
import math
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore

from ringcomm import _C, debug, flight, links, tuning
from ringcomm.environment import one_of, switch, value_of, warn_of_unknown
from ringcomm.groups import LONGEST_TIMEOUT, unwrapped
from ringcomm.host import given_name
from ringcomm.options import Options, check_finite, choices, hosts, on_devices, reproducible
from ringcomm.plan.simulator import link

EXECUTORS = ("auto", "messages", "fused")  # on GPUs
ASYNC_ERRORS = ("exit", "raise")  # there


@dataclass(frozen=True)
class Made:
    """As ``pg_options``: the backend of a new group, which is there already."""

    backend: Backend


def create(options: Any, pg_options: Any) -> Any:
    """Makes one rank's backend; torch calls it on every rank of a new group.

    Args:
        options: torch's ``_DistributedBackendOptions``: store, rank, size, timeout, name and
            members of the group.
        pg_options: what the user passed as ``pg_options``: a `ringcomm.Options`, or None.
    """
    if isinstance(pg_options, Made):
        return pg_options.backend
    # torchrun's store outlives its workers; they need not read what those before them wrote.
    store = PrefixStore(f"restart {value_of('TORCHELASTIC_RESTART_COUNT', '0')}", options.store)
    try:
        settings = _settings(options, pg_options)
    except Exception as error:
        _decline(store, options, error)
        raise
    return _C.create_backend(
        store, options.group_rank, options.group_size, _timeout(options), *settings
    )


def _timeout(options: Any) -> timedelta:
    timeout = options.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return timedelta(milliseconds=math.ceil(min(seconds, LONGEST_TIMEOUT.total_seconds()) * 1000))


def _decline(store: Any, options: Any, error: Exception) -> None:
    """Informs the other ranks why this one makes no group, which else would wait for it."""
    makes_it_later = getattr(options, "enable_reconfigure", False)
    if options.group_size > 1 and not makes_it_later:
        _C.decline_group(
            store,
            options.group_rank,
            options.group_size,
            _timeout(options),
            options.group_id,
            options.global_ranks_in_group,
            str(error).encode(errors="replace").decode(),
        )


def _settings(options: Any, pg_options: Any) -> tuple[Any, ...]:
    """What `_C.create_backend` takes of this rank's environment and options.

    Raises:
        ValueError: one of them cannot be.
        OSError: a tuning that the environment names cannot be read.
    """
    if not isinstance(pg_options, Options | None):
        raise ValueError(
            f'pg_options of the backend "ring" must be ringcomm.Options(...), got {pg_options!r}'
        )
    chosen = pg_options or Options()
    if _global_rank(options) == 0:
        warn_of_unknown()
    flight.start()
    switch("RINGCOMM_BLOCKING_WAIT")  # read where it is used, in C++
    return (
        choices(chosen),
        hosts(chosen, options.global_ranks_in_group or range(options.group_size)),
        *on_devices(chosen),
        options.group_id,
        options.global_ranks_in_group,
        given_name(),
        links.wanted(),
        one_of("RINGCOMM_EXECUTOR", EXECUTORS),
        _default_backend(),
        getattr(options, "enable_reconfigure", False),  # from torch 2.14 on
        link(links.across()),
        tuning.rules(),
        timedelta(seconds=links.heartbeat_timeout()),
        tuning.times(),
        tuning.used_file(),
        debug.reporter(),
        one_of("RINGCOMM_ASYNC_ERRORS", ASYNC_ERRORS),
        chosen.is_high_priority_stream,
        reproducible(chosen),
        check_finite(chosen),
    )


def _global_rank(options: Any) -> int:
    members = options.global_ranks_in_group
    return int(members[options.group_rank] if members else options.group_rank)


def _default_backend() -> Any:
    """The default group's, which knows of all ranks whether they still run; None without one."""
    group = dist.GroupMember.WORLD
    if group is None:
        return None
    backend = unwrapped(group._get_backend(group._device_types[0]))
    return backend if backend.name() == "ring" else None


@cache
def register() -> None:
    """Makes "ring" known to torch.distributed, for CPU and CUDA tensors."""
    atexit.register(_C.close_all)
    if "ring" not in dist.Backend.backend_list:  # else ringcomm_autoload.py has
        dist.Backend.register_backend("ring", create, extended_api=True, devices=["cpu", "cuda"])
