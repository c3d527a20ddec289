from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ReduceOp, Store

from ringcomm._C import links as links
from ringcomm._C import plan as plan
from ringcomm._C import streams as streams
from ringcomm._C.plan import Collective, Link, Plan

def create_backend(
    store: Store,
    rank: int,
    world_size: int,
    timeout: timedelta,
    algorithms: Sequence[tuple[Collective, str, Callable[[int, int], list[Plan]] | None]],
    host_of: Sequence[int],
    num_channels: int,
    slice_nbytes: int,
    max_ctas: int,
    group_name: str,
    global_ranks: Sequence[int],
    host: str = "",
    links: str = "auto",
    graphs: bool = False,
    executor: str = "auto",
    relative: Backend | None = None,
    enable_reconfigure: bool = False,
    across: Link | None = None,
) -> Backend: ...
def shrink(
    backend: Backend, exclude: Sequence[int], timeout: timedelta | None
) -> tuple[Backend, list[int], str]: ...
def all_reduce_now(backend: Backend, tensor: torch.Tensor, op: ReduceOp.RedOpType) -> bool: ...
def host_of(backend: Backend) -> list[int]: ...
def host_names(backend: Backend) -> list[str]: ...
def view_group(descriptor: int) -> dict[str, Any]: ...
def close_all() -> None: ...
def announce_refusal(backend: Backend, reason: str) -> None: ...
def refuse_message(backend: Backend, is_send: bool, peer: int, tag: int, reason: str) -> None: ...
def start_flight_recorder(capacity: int, stacks: bool, dump_failures: bool) -> None: ...
def dump_flight_record(path: str) -> str: ...
def missing_for_cuda() -> str: ...
def reduce_local(
    inputs: Sequence[torch.Tensor], output: torch.Tensor, op: ReduceOp.RedOpType
) -> None: ...

class FusedAlone:  # in builds with CUDA
    def __init__(self, world_size: int, algorithm: str, max_ctas: int = 32) -> None: ...
    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp.RedOpType) -> None: ...

def repeat_all_reduce(
    backend: Backend, tensor: torch.Tensor, op: ReduceOp.RedOpType, repeats: int
) -> None: ...
