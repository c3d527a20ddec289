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

    from torch.distributed import (
        ReduceOp,
        Work,
        get_backend,
        get_backend_config,
        get_global_rank,
        get_group_rank,
        get_node_local_rank,
        get_pg_count,
        get_process_group_ranks,
        get_rank,
        get_world_size,
        is_available,
        is_initialized,
        is_torchelastic_launched,
    )

    from ringcomm import backend, plan
    from ringcomm.collectives import (
        all_gather,
        all_gather_coalesced,
        all_gather_into_tensor,
        all_gather_single,
        all_reduce,
        all_reduce_coalesced,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        gather,
        gather_into_tensor,
        gather_single,
        monitored_barrier,
        reduce,
        reduce_scatter,
        reduce_scatter_single,
        reduce_scatter_tensor,
        scatter,
    )
    from ringcomm.flight import dump
    from ringcomm.groups import (
        destroy_process_group,
        init,
        init_process_group,
        new_group,
        new_subgroups,
        new_subgroups_by_enumeration,
        set_timeout,
    )
    from ringcomm.live import status
    from ringcomm.objects import (
        all_gather_object,
        broadcast_object_list,
        gather_object,
        recv_object_list,
        scatter_object_list,
        send_object_list,
    )
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
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "dump",
    "empty",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "is_shared",
    "is_torchelastic_launched",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "plan",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_timeout",
    "shared_memory",
    "shrink",
    "status",
    "topology",
]
