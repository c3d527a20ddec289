"""The public functions and classes of ringcomm, and the registration of its backend."""

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
from ringcomm.parts import sum_of_parts
from ringcomm.process_group import ProcessGroupRing
from ringcomm.shared_memory import empty, is_shared, shared_memory
from ringcomm.shrink import shrink
from ringcomm.stragglers import Straggler, stragglers
from ringcomm.topology import topology

backend.register()

__all__ = [
    "Options",
    "P2POp",
    "ProcessGroupRing",
    "ReduceOp",
    "Straggler",
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
    "stragglers",
    "sum_of_parts",
    "topology",
]
