"""torch's own tests of _reconfigure, from a checkout of its sources, with "ring" in their list.

torch's wheels do not have them. RINGCOMM_TORCH_SOURCES names the checkout, of torch 2.14 or newer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import torch

import ringcomm  # noqa: F401  (registers the backend)

FILE = Path("test", "distributed", "test_c10d_fault_tolerance.py")
LISTED = '("gloo", "cpu"),'

source = Path(os.environ["RINGCOMM_TORCH_SOURCES"], FILE)
text = source.read_text()
if LISTED not in text:
    raise RuntimeError(f"{source} no longer lists {LISTED}")

module = ModuleType(source.stem)
module.__file__ = str(source)
sys.modules[module.__name__] = module
exec(compile(text.replace(LISTED, '("ring", "cpu"),'), source, "exec"), module.__dict__)


class TestReconfigureOnRing(module.RingFaultToleranceTest):
    def _spawn_processes(self) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
