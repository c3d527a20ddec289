"""Several ranks on one GPU: what they need in their environment, and how many CTAs each may take.

Every rank is a process. As threads of one process they would share its 32 hardware queues, of which
NCCL's streams and ours take about 16 a rank, so that kernels that wait for each other can end up in
one queue. The processes' kernels are time-sliced, which is correct and slow, or run side by side
under MPS.

Within a process streams may share a queue, and a kernel that is loaded at its first launch may wait
for those that run. Neither causes a deadlock: all ranks launch the same kernels in the same
order, so the others have launched whatever the slowest rank has launched.
"""

from __future__ import annotations

import os

import torch

from gpu_suite import device, rehearsal

OLDEST_NCCL = 23003  # 2.30.3: the first with NCCL_MULTI_RANK_GPU_ENABLE

ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    # Nothing is connected while another rank's kernel waits for it.
    "NCCL_RUNTIME_CONNECT": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
}

# The queues of all ranks together: MPS has room for 64 and none for 128.
_HARDWARE_QUEUES = 64
_CTAS = 64  # of all ranks together: about half an H100's multiprocessors, the rest is for the sums


def prepare(world_size: int) -> None:
    """Readies the environment of the processes that are started next; before CUDA is used."""
    if torch.cuda.device_count() < world_size:
        os.environ.update(ENVIRONMENT)
        queues = max(1, min(32, _HARDWARE_QUEUES // world_size))
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(queues)


def missing(world_size: int) -> str:
    """Why so many ranks cannot run here; empty if they can."""
    gpus = torch.cuda.device_count()
    if gpus >= world_size:
        return ""
    if gpus == 0:
        return "torch finds no GPU"
    loaded = device.nccl_version()
    if rehearsal.ON or loaded >= OLDEST_NCCL:
        return ""
    return (
        f"{world_size} ranks on {gpus} GPU need NCCL 2.30.3, and {loaded} is loaded: "
        "name a newer one in RINGCOMM_NCCL for gpu_suite.sh, or in LD_PRELOAD"
    )


def ctas(world_size: int) -> int:
    """How many CTAs NCCL may use for each rank, so that all that wait for each other fit."""
    return max(1, _CTAS // world_size)
