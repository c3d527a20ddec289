"""What a rehearsal has in place of a GPU: torch.cuda's calls on the host, and gloo for NCCL.

It shows that every line of a test or benchmark runs and that its figures add up. It cannot show

* races: everything is done when a call returns, so no stream is ever too early or too late;
* that a capture is legal: a graph here is a list of in-place operations and all-reduces;
* that memory outlives its use on a device, or that ranks find room on one GPU;
* what NCCL answers, how it rounds, or how long anything takes.

`torch.cuda.is_available` stays false, for torch's own sake.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from common import tools
from torch._C._distributed_c10d import Backend
from torch.overrides import TorchFunctionMode

from gpu_suite import rehearsal


class Stream:
    def __init__(self, device: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        pass


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self._seconds = 0.0

    def record(self) -> None:
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end._seconds - self._seconds)


class Graph:
    """torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


class Capture(TorchFunctionMode):
    """torch.cuda.graph: as there, what is called within it is recorded and not done."""

    def __init__(self, graph: Graph, capture_error_mode: str) -> None:
        super().__init__()
        self._calls = graph.calls
        if capture_error_mode != "thread_local":
            raise ValueError("other modes forbid what other threads do, such as NCCL's")

    def __enter__(self) -> Capture:
        all_reduce = Backend.allreduce

        def record(group: Backend, *arguments: Any) -> SimpleNamespace:
            self._calls.append(lambda: all_reduce(group, *arguments).wait())
            return SimpleNamespace(wait=lambda: None)

        Backend.allreduce = record
        self._restore = functools.partial(setattr, Backend, "allreduce", all_reduce)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._restore()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not function.__name__.endswith("_"):
            raise NotImplementedError(
                f"{function.__name__} is not in place, and cannot be recorded"
            )
        self._calls.append(functools.partial(function, *args, **(kwargs or {})))
        return args[0]


class Nccl(dist.ProcessGroupGloo):
    """dist.ProcessGroupNCCL."""

    @staticmethod
    def Options() -> SimpleNamespace:  # noqa: N802 torch's name
        return SimpleNamespace(config=SimpleNamespace())

    def __init__(self, store: dist.Store, rank: int, size: int, options: SimpleNamespace) -> None:
        super().__init__(store, rank, size, options._timeout)

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        options = options or dist.AllreduceOptions()
        if options.reduceOp != dist.ReduceOp.AVG:
            return super().allreduce(tensors, options)
        options.reduceOp = dist.ReduceOp.SUM  # gloo has no average
        work = super().allreduce(tensors, options)
        work.wait()
        for tensor in tensors:
            tensor.div_(self.size(), rounding_mode="trunc")
        return work


class FusedAlone:
    """ringcomm._C.testing.FusedAlone, by what it does to a tensor where that means anything."""

    def __init__(self, world_size: int, algorithm: str, max_ctas: int = 32) -> None:
        self._world_size = world_size

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        tensor.mul_(self._world_size)


def install() -> None:
    """Puts all of this in the place of torch's own, in this process."""
    cuda = torch.cuda
    cuda.device_count = lambda: rehearsal.GPUS
    cuda.can_device_access_peer = lambda device, peer: True
    cuda.get_device_name = lambda device=None: rehearsal.LABEL
    cuda.set_device = lambda device: None
    cuda.Stream = Stream
    cuda.Event = Event
    cuda.stream = contextlib.nullcontext
    cuda.current_stream = Stream
    cuda.synchronize = lambda device=None: None
    cuda._sleep = lambda cycles: time.sleep(cycles / 2e9)
    cuda.CUDAGraph = Graph
    cuda.graph = Capture
    dist.ProcessGroupNCCL = Nccl
    tools().FusedAlone = FusedAlone
