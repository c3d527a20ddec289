"""Which kind of processor runs the model."""

from __future__ import annotations


class CpuPlatform:
    dist_backend = "gloo"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator"

    def is_cpu(self) -> bool:
        return True

    def import_kernels(self) -> None:
        """There are none, and so no shared memory either."""


current_platform = CpuPlatform()
