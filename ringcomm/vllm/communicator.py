"""What vLLM's groups of CPUs call, with ringcomm in place of vLLM's own shared memory."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

import ringcomm


class RingCommunicator(CpuCommunicator):
    """vLLM's communicator for CPUs. All-reduces, gathers and all-gathers are ringcomm's calls.

    The rest goes through the group, whose backend is "ring", too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dist_module = ringcomm

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum, in place. In a compiled model it is one operator, which waits."""
        if torch.compiler.is_compiling():
            torch.ops.ringcomm.all_reduce_(input_, self.device_group.group_name)
        else:
            ringcomm.all_reduce(input_, group=self.device_group)
        return input_

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False  # then vLLM makes no shared memory of its own
