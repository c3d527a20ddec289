from collections.abc import Sequence
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Backend, ReduceOp, Store

from ringcomm._C import plan as plan
from ringcomm._C import streams as streams

MAX_WORLD_SIZE: int

def create_backend(
    store: Store,
    rank: int,
    world_size: int,
    timeout: timedelta,
    algorithm: str,
    num_channels: int,
    slice_nbytes: int,
    max_ctas: int,
    group_name: str,
    global_ranks: Sequence[int],
    graphs: bool = False,
) -> Backend: ...
def all_reduce_now(backend: Backend, tensor: torch.Tensor, op: ReduceOp.RedOpType) -> bool: ...
def missing_for_cuda() -> str: ...
def reduce_local(
    inputs: Sequence[torch.Tensor], output: torch.Tensor, op: ReduceOp.RedOpType
) -> None: ...
def repeat_all_reduce(
    backend: Backend, tensor: torch.Tensor, op: ReduceOp.RedOpType, repeats: int
) -> None: ...
