"""What the reference, which is made from the source, can know only from the imported package.

These are the arguments of the direct calls, which `by_ring` makes of definitions without any: those
of torch's functions. And the algorithms that help(ringcomm.plan) lists.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import griffe

from ringcomm.plan.algorithms import listing


class Signatures(griffe.Extension):
    """Adds it to what was read from the source."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Called with every module of the package."""
        if mod.path == "ringcomm.plan" and mod.docstring is not None:
            mod.docstring.value += f"\n\n```text\n{listing()}\n```"

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Gives the functions that are decorated with `by_ring` the parameters they have."""
        if not any("by_ring" in str(decorator.value) for decorator in func.decorators):
            return
        call = getattr(importlib.import_module(func.module.path), func.name)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    parameter.name,
                    kind=griffe.ParameterKind(parameter.kind.description),
                    default=None if parameter.default is parameter.empty else shown(parameter),
                )
                for parameter in inspect.signature(call).parameters.values()
            )
        )
        func.returns = returned(call) or func.returns


def returned(call: Callable[..., Any]) -> str:
    """The annotation without the names of modules; empty where torch gives none."""
    annotation = inspect.signature(call).return_annotation
    if annotation is inspect.Signature.empty:
        return ""
    if isinstance(annotation, type):
        return annotation.__name__
    return re.sub(r"[\w.]+\.", "", str(annotation))


def shown(parameter: inspect.Parameter) -> str:
    """The default as it is written."""
    default = parameter.default
    return f"ReduceOp.{default.name}" if hasattr(default, "name") else repr(default)
