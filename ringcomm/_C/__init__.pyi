from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ReduceOp, Store
from torch.distributed import ProcessGroup, Work

from ringcomm._C import links as links
from ringcomm._C import plan as plan
from ringcomm._C import streams as streams
from ringcomm._C.plan import Collective, Link, Plan

class RingBackend(Backend):
    @property
    def reproducible(self) -> str: ...
    def perform_nocolor_split(self, device: torch.device) -> None: ...

def create_backend(
    store: Store,
    rank: int,
    world_size: int,
    timeout: timedelta,
    algorithms: Sequence[tuple[Collective, str, Callable[[int, int], list[Plan]] | None]],
    host_of: Sequence[int],
    num_channels: int,
    slice_nbytes: int,
    max_ctas: int | None,
    group_name: str,
    global_ranks: Sequence[int],
    host: str = "",
    links: str = "auto",
    executor: str = "auto",
    relative: Backend | None = None,
    enable_reconfigure: bool = False,
    link: Link | None = None,
    tuned: Sequence[tuple[int, Collective, str, int]] = (),
    heartbeat_timeout: timedelta = ...,
    times: Sequence[tuple[int, Collective, int, float]] = (),
    tuned_by: str = "",
    made: Callable[[int], None] | None = None,
    async_errors: str = "exit",
    is_high_priority_stream: bool = True,
    reproducible: str = "off",
    check_finite: bool = False,
) -> Backend: ...
def decline_group(
    store: Store,
    rank: int,
    world_size: int,
    timeout: timedelta,
    group_name: str,
    global_ranks: Sequence[int],
    reason: str,
) -> None: ...
def shrink(
    backend: Backend, exclude: Sequence[int], timeout: timedelta | None
) -> tuple[Backend, list[int], str]: ...
def begin_shared_memory() -> None: ...
def end_shared_memory() -> None: ...
def add_in_pairs(tensors: Sequence[torch.Tensor]) -> torch.Tensor: ...
def is_shared(tensor: torch.Tensor) -> bool: ...
def try_all_reduce_sync(
    tensor: torch.Tensor, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | None, /
) -> bool: ...
def try_reduce_scatter_sync(
    output: torch.Tensor,
    input: torch.Tensor,
    op: ReduceOp | ReduceOp.RedOpType,
    group: ProcessGroup | None,
    /,
) -> bool: ...
def try_all_gather_sync(
    output: torch.Tensor, input: torch.Tensor, group: ProcessGroup | None, /
) -> bool: ...
def try_broadcast_sync(tensor: torch.Tensor, src: int, group: ProcessGroup | None, /) -> bool: ...
def try_reduce_sync(
    tensor: torch.Tensor,
    dst: int,
    op: ReduceOp | ReduceOp.RedOpType,
    group: ProcessGroup | None,
    /,
) -> bool: ...
def try_all_to_all_sync(
    output: torch.Tensor, input: torch.Tensor, group: ProcessGroup | None, /
) -> bool: ...
def try_send_sync(
    tensor: torch.Tensor, dst: int | None, tag: int, group: ProcessGroup | None, /
) -> bool: ...
def try_recv_sync(
    tensor: torch.Tensor, src: int | None, tag: int, group: ProcessGroup | None, /
) -> bool: ...
def try_isend_sync(
    tensor: torch.Tensor, dst: int | None, tag: int, group: ProcessGroup | None, /
) -> Work | None: ...
def try_irecv_sync(
    tensor: torch.Tensor, src: int | None, tag: int, group: ProcessGroup | None, /
) -> Work | None: ...
def try_barrier_sync(group: ProcessGroup | None, /) -> bool: ...
def watch_groups(names: dict[str, Any], ops: type) -> None: ...
def remember_group(group: ProcessGroup, backend: Backend) -> None: ...
def forget_group(id: int) -> None: ...
def num_remembered_groups() -> int: ...
def host_of(backend: Backend) -> list[int]: ...
def host_names(backend: Backend) -> list[str]: ...
def view_group(descriptor: int) -> dict[str, Any]: ...
def close_all() -> None: ...
def announce_refusal(backend: Backend, reason: str) -> None: ...
def refuse_message(backend: Backend, is_send: bool, peer: int, tag: int, reason: str) -> None: ...
def start_flight_recorder(
    capacity: int, stacks: bool, dump_failures: bool, digests: bool
) -> None: ...
def dump_flight_record(path: bytes) -> bytes: ...
def missing_for_cuda() -> str: ...
