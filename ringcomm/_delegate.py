"""torch.distributed's functions, with the ring in place of their `group`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend
from torch.distributed import ProcessGroup, ReduceOp

from ringcomm import _C
from ringcomm._fast_path import has_devices, is_compiling, remember
from ringcomm.groups import ring_group

F = TypeVar("F", bound=Callable[..., Any])

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Refused:
    """A call that torch has refused, and why."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str


# Announces a refused call to other ranks on the ring's backend.
Announce = Callable[[Backend, Refused], None]


def renamed(function: F, name: str) -> F:
    """torch's function of that name if it has one: the old name then warns at every call."""
    return cast(F, getattr(dist, name, function))


def announce_to_all(backend: Backend, refused: Refused) -> None:
    """The other ranks' collective raises the reason."""
    _C.announce_refusal(backend, refused.reason)


def announce_nothing(backend: Backend, refused: Refused) -> None:
    """No other rank waits for the refused call, or no other rank can be reached."""


def on_ring(function: F, announce: Announce = announce_to_all, *, sends_objects: bool = False) -> F:
    """`function` on the ring of the group that it is given.

    `announce` is called if torch refuses the call. The function takes tensors or, with
    `sends_objects`, objects of any kind, which need no check.

    From then on, calls of that group may be fast. If a program has replaced torch's function by one
    without torch's signature, the group must be a keyword argument.
    """
    names = list(inspect.signature(function).parameters)
    position = names.index("group") if "group" in names else sys.maxsize

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        group = args[position] if len(args) > position else kwargs.get("group")
        ring = ring_group(group)
        if not is_compiling():
            remember(group, ring)
        if len(args) > position:
            args = (*args[:position], ring, *args[position + 1 :])
        else:
            kwargs["group"] = ring
        return announcing(ring, function, names, args, kwargs, announce, sends_objects)

    return cast(F, call)


def by_ring(
    function: F, announce: Announce = announce_to_all, *, sends_objects: bool = False
) -> Callable[[Callable[[], None]], F]:
    """Makes a definition call `function`, on the ring of the group that it is given.

    The definition gives the name and the docstring, `function` the arguments and their types.
    `announce` is called where torch refuses them.
    """

    def decorate(definition: Callable[[], None]) -> F:
        call = functools.wraps(definition)(on_ring(function, announce, sends_objects=sends_objects))
        call.__wrapped__ = function  # whose signature it has
        return cast(F, call)

    return decorate


def announcing(
    ring: ProcessGroup,
    function: Callable[..., Any],
    names: list[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    announce: Announce = announce_to_all,
    sends_objects: bool = False,
) -> Any:
    """function(*args, **kwargs), an operation on `ring` whose refusal is announced.

    The backend announces what it refuses itself. This function announces what is refused before the
    backend is called. It announces nothing for devices, and nothing while calls are coalesced,
    because those begin later. It announces nothing with TORCH_DISTRIBUTED_DEBUG=DETAIL, because the
    other ranks then wait in torch's own check, outside of the ring. `names` are those of the
    function's parameters.

    Torch refuses kinds of tensors with errors of any type (functorch's and tracers' are
    RuntimeErrors), and some after the backend has had the call: then its number has changed.
    """
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    before = _num_calls(ring)
    try:
        if not is_compiling() and not sends_objects:
            check(given)
        return function(*args, **kwargs)
    except Exception as error:
        is_announced = str(error).startswith("ring: ") or not isinstance(ring, ProcessGroup)
        is_announced = is_announced or _num_calls(ring) != before
        on_host = (_send_on_host if sends_objects else _are_on_host)(given)
        if not is_announced and on_host and not c10d._world.pg_coalesce_state:
            # An argument may hold lone surrogates. They are not valid UTF-8 and are escaped.
            said = str(error).partition("\n")[0].encode(errors="backslashreplace").decode()
            reason = f"{function.__name__.lstrip('_')}: {said}"
            announce(ring._get_backend(_CPU), Refused(function, args, kwargs, reason))
        raise


def _are_on_host(given: dict[str, Any]) -> bool:
    """Whether the other ranks' tensors are on the CPU, as far as this rank's arguments say it."""
    devices = {tensor.device for tensor in _tensors(given.values())}
    return devices == {_CPU} if devices else not has_devices()


def _send_on_host(given: dict[str, Any]) -> bool:
    """Whether objects go through tensors on the CPU, as they do where no device is given."""
    return given.get("device") in (None, _CPU, "cpu")


def _num_calls(ring: ProcessGroup) -> int:
    """How many collectives the ring's backend has had."""
    if is_compiling() or not isinstance(ring, ProcessGroup):
        return 0
    backend: Any = ring._get_backend(_CPU)  # torch's stub lacks the method
    return int(backend._get_sequence_number_for_group())


def check(arguments: dict[str, Any]) -> None:
    """Refuses what torch accepts, or refuses in terms of its own internal types.

    For a view that is still to be negated or conjugated, a sparse complex tensor, and a tensor on
    the lazy device, torch gives the backend a copy. What the backend writes there is lost.
    """
    op = arguments.get("op", ReduceOp.SUM)
    if not isinstance(op, ReduceOp | ReduceOp.RedOpType):
        raise TypeError(f"op must be a ReduceOp, such as ReduceOp.SUM, got {op!r}")
    for tensor in _tensors(arguments.values()):
        if tensor.device.type == "lazy":
            raise NotImplementedError(
                f"got a tensor on {tensor.device}; only CPU and CUDA tensors can be sent"
            )
        if tensor.is_neg():
            raise ValueError("got a view that is still to be negated; pass tensor.resolve_neg()")
        if tensor.is_conj():
            raise ValueError(
                "got a view that is still to be conjugated; pass tensor.resolve_conj()"
            )
        if tensor.is_sparse and tensor.is_complex():
            raise ValueError(
                "got a sparse complex tensor; reduce real = torch.view_as_real(tensor), and then "
                "take torch.view_as_complex(real)"
            )


def _tensors(arguments: Iterable[Any]) -> Iterable[torch.Tensor]:
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _tensors(argument)
