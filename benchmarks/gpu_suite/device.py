"""Which device the GPU tests and benchmarks run on: GPUs, or in a rehearsal the CPU."""

from __future__ import annotations

import ctypes

import torch

from gpu_suite import rehearsal

if rehearsal.ON:
    from gpu_suite import stand_in

    stand_in.install()

TYPE = "cpu" if rehearsal.ON else "cuda"
# What init_process_group takes, by what carries this device's tensors.
BACKENDS = {
    "ring": "cpu:ring" if rehearsal.ON else "cpu:gloo,cuda:ring",
    "nccl": "cpu:gloo" if rehearsal.ON else "cpu:gloo,cuda:nccl",
}
OTHER = "meta" if rehearsal.ON else "cpu"  # the type of a device that a group on TYPE refuses


def of(index: int) -> torch.device:
    """The GPU with this index; in a rehearsal the CPU stands for all."""
    return torch.device(TYPE, 0 if rehearsal.ON else index)


def own(index: int) -> torch.device:
    """The GPU of the rank with this index, now the current one, with its context made."""
    device = of(index % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    return device


def label() -> str:
    """The GPU's name, or that there is none: what every file of results says of itself."""
    return torch.cuda.get_device_name(0) if torch.cuda.device_count() > 0 else "no GPU"


def nccl_version() -> int:
    """The version of the loaded NCCL, as NCCL writes it: 23007 is 2.30.7. 0 if there is none."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except OSError:
        return 0
    return number.value
