"""What --help names, once more: where it is defined, torch is imported, which takes seconds.

tests/test_cli.py compares it with what it names.
"""

from __future__ import annotations

# The keys of ringcomm.plan.plans.COLLECTIVES.
COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "barrier",
)
# Several algorithms can carry these out, and all ranks know their size.
TUNED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
# The dtypes that are reduced, in torch's spelling and in the order of csrc/reduce/types.h.
DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
# What `reproducible` of ringcomm.Options may be.
REPRODUCIBLE = ("off", "ranks", "world")
# The links of ringcomm.plan, with latency and bandwidth.
LINKS = {
    "nvlink4": "3.4 us, 450 GB/s",
    "pcie5": "5.7 us, 64 GB/s",
    "pcie4": "5.7 us, 32 GB/s",
    "ndr": "14 us, 50 GB/s",
    "100gbe": "14 us, 12.5 GB/s",
}
# The models and machines of ringcomm.cost.
MODELS = ("gpt2", "gpt2-xl", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
MACHINES = ("h100-nvlink", "h200-nvlink", "h100-pcie", "h100-100gbe")
