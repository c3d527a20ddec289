"""CUDA where there is no GPU: a clear error, and a group that goes on. tests/gpu has the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm
from ringcomm import _C, _build_info

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible")


def connect(rank: Rank) -> str:
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    assert not backend.supports_coalescing
    with pytest.raises(dist.DistBackendError) as raised:
        backend.eager_connect_single_device(torch.device("cuda", 0))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [rank.world_size] * 3
    return str(raised.value)


def test_a_group_on_a_device_that_is_not_there_is_an_error() -> None:
    for text in on_processes(connect, 2, backend="ring"):
        if _build_info.CPU_ONLY_REASON is None:
            assert "cuda:0: cudaGetDeviceCount(&num_devices) failed with cudaError" in text
        else:
            assert "ringcomm was built for CPUs only" in text


def test_the_build_says_what_it_lacks() -> None:
    assert (_C.missing_for_cuda() == "") == (_build_info.CPU_ONLY_REASON is None)


@pytest.mark.parametrize(
    ("name", "most"), [("channels", 64), ("slice_nbytes", 1 << 36), ("max_ctas", 1024)]
)
@pytest.mark.parametrize(
    ("value", "got"),
    [(0, ", got 0"), (-1, ", got -1"), ("four", ", got 'four'"), (True, ", got True"), (None, "")],
)
def test_options_for_devices_have_bounds(name: str, most: int, value: Any, got: str) -> None:
    options = ringcomm.Options(**{name: 10**5000 if value is None else value})
    text = f"{name} of ringcomm.Options must be an integer from 1 to {most}{got}$"
    with pytest.raises(ValueError, match=text):
        dist.init_process_group(
            "ring", store=dist.HashStore(), rank=0, world_size=1, pg_options=options
        )
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_priority_of_streams_is_a_bool() -> None:
    options = ringcomm.Options(is_high_priority_stream=1)  # type: ignore[arg-type]
    text = "is_high_priority_stream of ringcomm.Options must be True or False, got 1$"
    with pytest.raises(ValueError, match=text):
        dist.init_process_group(
            "ring", store=dist.HashStore(), rank=0, world_size=1, pg_options=options
        )
    if dist.is_initialized():
        dist.destroy_process_group()


def test_executors_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_EXECUTOR", "kernel")
    text = "RINGCOMM_EXECUTOR is 'kernel'; it must be one of auto, messages, fused"
    with pytest.raises(ValueError, match=text):
        dist.init_process_group("ring", store=dist.HashStore(), rank=0, world_size=1)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_switches_are_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_BLOCKING_WAIT", "maybe")
    with pytest.raises(ValueError, match="RINGCOMM_BLOCKING_WAIT is 'maybe'; it must be 0 or 1"):
        dist.init_process_group("ring", store=dist.HashStore(), rank=0, world_size=1)
    if dist.is_initialized():
        dist.destroy_process_group()
