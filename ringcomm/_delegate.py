"""torch.distributed's functions, with the ring in place of their `group`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist

from ringcomm.groups import ring_group

F = TypeVar("F", bound=Callable[..., Any])


def renamed(function: F, name: str) -> F:
    """torch's function of that name if it has one: the old name then warns at every call."""
    return cast(F, getattr(dist, name, function))


def by_ring(function: F) -> Callable[[Callable[[], None]], F]:
    """Makes a definition call `function`, on the ring of the group that it is given.

    The definition gives the name and the docstring, `function` the arguments and their types.
    """
    position = list(inspect.signature(function).parameters).index("group")

    def decorate(definition: Callable[[], None]) -> F:
        @functools.wraps(definition)
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) > position:
                ring = ring_group(args[position])
                return function(*args[:position], ring, *args[position + 1 :], **kwargs)
            kwargs["group"] = ring_group(kwargs.get("group"))
            return function(*args, **kwargs)

        call.__wrapped__ = function  # whose signature it has
        return cast(F, call)

    return decorate
