"""Loads torch's own distributed tests with "ring" treated wherever they treat "gloo".

torch ships the tests of its backends in torch.testing._internal.distributed.distributed_test. They
read the backend's name from the environment, and many ask whether it is "gloo" before they run.
Here the module's source is loaded with those questions extended to "ring"; nothing else changes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_distributed

import ringcomm  # noqa: F401  (registers the backend)

NAME = "torch.testing._internal.distributed.distributed_test"

# What the tests read at import and while they run. MASTER_ADDR is set by the tests, too.
ENVIRONMENT = {
    "BACKEND": "ring",
    "WORLD_SIZE": os.environ.get("RINGCOMM_TEST_WORLD_SIZE", "4"),
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
    "TEMP_DIR": tempfile.mkdtemp(prefix="ringcomm-torch-suite-"),
}

EXTENDED = [
    (r'BACKEND != "gloo"', 'BACKEND not in ("gloo", "ring")'),
    (r'BACKEND == "gloo"', 'BACKEND in ("gloo", "ring")'),
    (r'require_backend_is_available\(\{"gloo"\}\)', 'require_backend_is_available({"ring"})'),
    (r'BACKEND != "mpi", "Only MPI supports', 'BACKEND not in ("mpi", "ring"), "Only MPI supports'),
    (r"^(    dist\.Backend\.GLOO,)$", r'\1 "ring",'),
]


def needs_gpus(number: int, *, allow_cpu: bool = False) -> Callable[[Any], Any]:
    """torch's skip_if_lt_x_gpu where there are none."""
    return (lambda test: test) if allow_cpu else unittest.skip(f"{number} GPUs are needed")


def skipped_before_it_is_forked() -> AbstractContextManager[Any]:
    """A test for GPUs would find in its ranks, once they are forked, that there are none."""
    if torch.accelerator.is_available():
        return contextlib.nullcontext()
    return mock.patch.multiple(
        common_distributed,
        skip_if_lt_x_gpu=needs_gpus,
        skip_if_no_gpu=unittest.skip("GPUs are needed"),
    )


def load() -> ModuleType:
    """The module, ready to subclass its tests, which need ENVIRONMENT while they run."""
    for feature in ("ddp", "gpu", "plugin", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add("ring")

    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.origin is not None
    with open(spec.origin) as file:
        source = file.read()
    for pattern, replacement in EXTENDED:
        source, number = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        if number == 0:
            raise RuntimeError(f"{spec.origin} no longer contains {pattern!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    with mock.patch.dict(os.environ, ENVIRONMENT), skipped_before_it_is_forked():
        exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module
