"""Readies the environment before the first rank is started."""

from gpu_suite import one_gpu

one_gpu.prepare(world_size=4)
