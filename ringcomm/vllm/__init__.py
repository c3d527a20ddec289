"""vLLM on CPUs, with ringcomm between the ranks: inside of a host and between hosts.

    VLLM_PLUGINS=ringcomm vllm serve MODEL --tensor-parallel-size 2

`register` is an entry point of the group "vllm.general_plugins", which vLLM calls in each of its
processes. Tried with vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import os


def register() -> None:
    """Has vLLM's groups use the backend "ring", and its CPU communicator ringcomm's calls.

    It does so only where VLLM_PLUGINS names ringcomm: vLLM loads all plug-ins by default, and
    ringcomm may be installed for something else. Nothing changes where ranks are not on CPUs.

    Raises:
        ImportError: this vLLM has no communicator for CPUs.
    """
    if "ringcomm" not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    platform = type(current_platform)
    platform.dist_backend = "ring"
    platform.get_device_communicator_cls = classmethod(lambda _: _COMMUNICATOR)


_COMMUNICATOR = f"{__name__}.communicator.RingCommunicator"
