"""ringcomm: ring all-reduce for PyTorch.

Importing it registers the torch.distributed backend "ring". The functions here are the direct
calls; `ringcomm.plan` shows what they do.
"""

import importlib.metadata
import sys

try:
    __version__ = importlib.metadata.version("ringcomm")
except importlib.metadata.PackageNotFoundError:  # found by its path, not installed
    __version__ = "unknown"

# Why the library cannot be used. Only `python -m ringcomm` gets to see it: its command "doctor"
# must run where the import fails.
unusable: ImportError | None = None

try:
    from ringcomm import _build_check

    _build_check.check_build()

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
    from ringcomm.shrink import shrink
    from ringcomm.topology import topology

    backend.register()
except ImportError as error:
    # Python imports the package before the __main__ that it is told to run, with this argv[0].
    if sys.argv[0] != "-m" or ("-m", "ringcomm") not in zip(
        sys.orig_argv, sys.orig_argv[1:], strict=False
    ):
        raise
    unusable = error

__all__ = [
    "Options",
    "P2POp",
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
    "gather",
    "get_rank",
    "get_world_size",
    "init",
    "irecv",
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
    "shrink",
    "status",
    "topology",
]
