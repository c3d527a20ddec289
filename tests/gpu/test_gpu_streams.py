"""The order of streams: capture in graphs, work beside other streams, errors seen by the host."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from gpus import Gpu, needs_gpu, on_gpus, world_sizes

pytestmark = [needs_gpu, pytest.mark.slow]


def replay(gpu: Gpu) -> None:
    """A captured all-reduce sums what the tensor holds at each replay."""
    tensor = torch.ones(1 << 18, device=gpu.device)
    gpu.ring.allreduce([tensor]).wait()
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        tensor.mul_(2)
        gpu.ring.allreduce([tensor]).wait()
        tensor.add_(1)
    for start in (1.0, 5.0):
        tensor.fill_(start + gpu.rank)
        graph.replay()
        torch.cuda.current_stream().synchronize()
        expected = sum(2 * (start + r) for r in range(gpu.world_size)) + 1
        assert torch.all(tensor == expected)
    tensor.fill_(1)
    gpu.ring.allreduce([tensor]).wait()
    assert torch.all(tensor == gpu.world_size)


def beside_compute(gpu: Gpu) -> None:
    """Input made late on one stream, compute on another, the result used on a third."""
    streams = [torch.cuda.Stream(gpu.device) for _ in range(2)]
    tensor = torch.zeros(1 << 22, device=gpu.device)
    other = torch.randn(2048, 2048, device=gpu.device)
    expected = other @ other
    for _ in range(5):
        torch.cuda._sleep(5_000_000)
        tensor.fill_(gpu.rank + 1.0)
        work = gpu.ring.allreduce([tensor])
        streams[0].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[0]):
            product = other @ other
        with torch.cuda.stream(streams[1]):
            work.wait()
            total = tensor * 1.0
        work.wait()
        streams[1].synchronize()
        streams[0].synchronize()
        assert torch.all(total == sum(range(1, gpu.world_size + 1)))
        assert torch.allclose(product, expected)


def memory_is_kept(gpu: Gpu) -> None:
    """A tensor that is freed at once after the call is not given to another tensor meanwhile."""
    for _ in range(20):
        torch.cuda._sleep(1_000_000)
        outputs = torch.empty(gpu.world_size << 20, device=gpu.device)
        work = gpu.ring._allgather_base(
            outputs, torch.full((1 << 20,), float(gpu.rank), device=gpu.device)
        )
        torch.full((1 << 20,), -1.0, device=gpu.device)
        work.wait()
        for r, part in enumerate(outputs.view(gpu.world_size, -1)):
            assert torch.all(part == r)


def copies_are_kept(gpu: Gpu) -> None:
    """Nor are the copies that messages of views go through."""
    following, previous = ((gpu.rank + step) % gpu.world_size for step in (1, -1))
    for _ in range(20):
        sent = torch.full((1024, 1024), float(gpu.rank), device=gpu.device).t()
        got = torch.empty((1024, 2048), device=gpu.device)[:, ::2]
        torch.cuda._sleep(1_000_000)
        gpu.ring._start_coalescing()
        gpu.ring.send([sent], following, 0)
        gpu.ring.recv([got], previous, 0)
        work = gpu.ring._end_coalescing()
        for _ in range(2):
            torch.full((1024, 1024), -1.0, device=gpu.device)
        work.wait()
        assert torch.all(got == previous)


def futures(gpu: Gpu) -> None:
    tensor = torch.ones(1000, device=gpu.device)
    doubled = gpu.ring.allreduce([tensor]).get_future().then(lambda done: done.value()[0] * 2)
    assert torch.all(doubled.wait() == 2 * gpu.world_size)


def late(gpu: Gpu) -> str:
    """Rank 1 does not come; the others' call, or its wait, ends with an error that names it.

    A call of many slices is still under way then: NCCL takes no more of them.
    """
    if gpu.rank == 1:
        gpu.store.wait(["rank 0 has given up"])  # the group stays open until then
        return ""
    tensor = torch.ones(1 << 20, device=gpu.device)
    with pytest.raises(torch.distributed.DistBackendError) as raised:
        gpu.ring.allreduce([tensor]).wait(timedelta(seconds=30))
    gpu.store.set("rank 0 has given up", "")
    return str(raised.value)


@world_sizes(2, 4)
@pytest.mark.parametrize("body", [replay, beside_compute, memory_is_kept, copies_are_kept, futures])
def test_streams(body, world_size: int) -> None:
    on_gpus(body, world_size, blocking=False)


@world_sizes(2)
def test_a_time_out_names_the_rank_at_fault(world_size: int) -> None:
    texts = on_gpus(late, world_size, timeout=timedelta(seconds=5), blocking=False)
    assert " Timed out after 5" in texts[0] and "waiting for rank 1: rank 1 " in texts[0]
