"""Loads torch's own distributed tests with "ring" treated wherever they treat "gloo".

torch ships the tests of its backends in torch.testing._internal.distributed.distributed_test. They
read the backend's name from the environment, and many ask whether it is "gloo" before they run.
Here the module's source is loaded with those questions extended to "ring"; nothing else changes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from types import ModuleType
from unittest import mock

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


def load() -> ModuleType:
    """The module, ready to subclass its tests, which need ENVIRONMENT while they run."""
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "gpu", "plugin", "subgroup"):
        DistTestCases.backend_feature[feature].add("ring")

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
    with mock.patch.dict(os.environ, ENVIRONMENT):
        exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module
