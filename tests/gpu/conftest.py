"""Readies the environment before the first rank is started."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from gpu_suite import one_gpu

one_gpu.prepare(world_size=4)
