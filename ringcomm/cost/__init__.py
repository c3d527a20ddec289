"""What training a transformer on many ranks costs: memory, operations, communication.

The arithmetic of Tazi et al., The Ultra-Scale Playbook: Training LLMs on GPU clusters (Hugging
Face, 2025), each formula checked against its derivation; where they differ, the docstring says how.
Times are in seconds, bandwidths in bytes per second and direction, rates in floating-point
operations per second.

    >>> from ringcomm import cost
    >>> model, machine = cost.MODELS["llama-3.1-8b"], cost.MACHINES["h100-nvlink"]
    >>> layout = cost.Layout(dp=8, zero=3, seq_len=4096)
    >>> cost.training_memory(model, layout).total
    >>> for overlap in cost.overlaps(model, machine, layout): print(overlap.name, overlap.ratio)

``python -m ringcomm cost`` prints them as a table. `device_calls` says what one collective costs
the host of a CUDA device.
"""

from __future__ import annotations

from ringcomm.cost.analysis import Overlap, overlaps
from ringcomm.cost.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    data_parallel_crossover,
    data_parallel_ratio,
    pipeline_bubble_fraction,
    pipeline_parallel_crossover,
    pipeline_parallel_ratio,
    send_seconds,
    tensor_parallel_crossover,
    tensor_parallel_ratio,
    zero3_ratio,
)
from ringcomm.cost.config import from_config
from ringcomm.cost.device import DeviceCalls, DeviceLayout, device_calls
from ringcomm.cost.layout import Layout
from ringcomm.cost.machine import MACHINES, Machine
from ringcomm.cost.memory import (
    BFLOAT16,
    FLOAT32,
    Memory,
    Precision,
    activation_nbytes_per_layer,
    params_per_rank,
    training_memory,
)
from ringcomm.cost.transformer import MODELS, Experts, LatentAttention, Transformer

__all__ = [
    "BFLOAT16",
    "FLOAT32",
    "MACHINES",
    "MODELS",
    "DeviceCalls",
    "DeviceLayout",
    "Experts",
    "LatentAttention",
    "Layout",
    "Machine",
    "Memory",
    "Overlap",
    "Precision",
    "Transformer",
    "activation_nbytes_per_layer",
    "all_gather_seconds",
    "all_reduce_seconds",
    "data_parallel_crossover",
    "data_parallel_ratio",
    "device_calls",
    "from_config",
    "overlaps",
    "params_per_rank",
    "pipeline_bubble_fraction",
    "pipeline_parallel_crossover",
    "pipeline_parallel_ratio",
    "send_seconds",
    "tensor_parallel_crossover",
    "tensor_parallel_ratio",
    "training_memory",
    "zero3_ratio",
]
