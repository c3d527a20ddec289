"""Collectives by fused kernels: the checks that messages pass, and what is particular to them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from gpus import needs_gpu, on_gpus, world_sizes
from test_gpu_collectives import (
    check_against_nccl,
    check_all_reduce,
    check_rooted_and_uneven,
    check_scattered_and_gathered,
)
from test_gpu_streams import beside_compute, late, replay

pytestmark = [needs_gpu, pytest.mark.slow]


@world_sizes(2, 4)
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize(
    "check",
    [check_all_reduce, check_against_nccl, check_scattered_and_gathered, check_rooted_and_uneven],
)
def test_fused_kernels(check, world_size: int, algorithm: str) -> None:
    with_nccl = check is check_against_nccl
    on_gpus(check, world_size, algorithm=algorithm, with_nccl=with_nccl, executor="fused")


@world_sizes(2)
@pytest.mark.parametrize("algorithm", ["one_shot", "halving_doubling", "double_tree"])
def test_other_algorithms(world_size: int, algorithm: str) -> None:
    on_gpus(check_all_reduce, world_size, algorithm=algorithm, executor="fused")


@world_sizes(2)
@pytest.mark.parametrize("body", [replay, beside_compute])
def test_fused_kernels_on_streams(body, world_size: int) -> None:
    on_gpus(body, world_size, blocking=False, executor="fused")


@world_sizes(2)
def test_a_time_out_says_for_whom_a_kernel_waits(world_size: int) -> None:
    texts = on_gpus(
        late, world_size, timeout=timedelta(seconds=5), blocking=False, executor="fused"
    )
    assert " Timed out after 5" in texts[0] and "waiting for rank 1: rank 1 " in texts[0]
