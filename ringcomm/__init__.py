"""ringcomm: ring all-reduce for PyTorch.

Importing it registers the torch.distributed backend "ring". The functions here are the direct
calls; `ringcomm.plan` shows what they do.
"""

import importlib.metadata
import sys

try:
    __version__ = importlib.metadata.version("ringcomm") or "unknown"  # without metadata
except importlib.metadata.PackageNotFoundError:  # found by its path, not installed
    __version__ = "unknown"

# Python imports the package before the __main__ that it is told to run, with this argv[0]. Then the
# rest waits for `ringcomm._library`: usage errors need no torch, and the doctor must run where the
# import fails. The console command (ringcomm_command.py) says by its argv[0] that it is one.
_options = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
_module = next((value for option, value in _options if option == "-m"), None)

if (sys.argv[0], _module) != ("-m", "ringcomm") and sys.argv[0] != "-m ringcomm":
    from ringcomm import _build_check

    _build_check.check_build(__path__)

    from torch.distributed import ReduceOp, Work, get_rank, get_world_size

    from ringcomm import backend, plan
    from ringcomm.collectives import (
        all_gather,
        all_gather_into_tensor,
        all_reduce,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        gather,
        monitored_barrier,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        scatter,
    )
    from ringcomm.flight import dump
    from ringcomm.groups import destroy_process_group, init, new_group
    from ringcomm.live import status
    from ringcomm.options import Options
    from ringcomm.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
    from ringcomm.process_group import ProcessGroupRing
    from ringcomm.shared_memory import empty, is_shared, shared_memory
    from ringcomm.shrink import shrink
    from ringcomm.topology import topology

    backend.register()

__all__ = [
    "Options",
    "P2POp",
    "ProcessGroupRing",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "destroy_process_group",
    "dump",
    "empty",
    "gather",
    "get_rank",
    "get_world_size",
    "init",
    "irecv",
    "is_shared",
    "isend",
    "monitored_barrier",
    "new_group",
    "plan",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
    "shared_memory",
    "shrink",
    "status",
    "topology",
]
