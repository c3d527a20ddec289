"""torch.compile breaks a model's graphs on ring where it breaks them on gloo, and nowhere else."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from alike import assert_alike, batch, loss_of
from ranks import Rank, on_processes
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = 250.0  # Dynamo takes long beside other tests
STEPS = 3


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 16)
        self.last = nn.Linear(16, 10)
        self.norm = nn.LayerNorm(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.last(torch.tanh(self.first(x))))


def network(kind: type[Network] = Network) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


def divided(plan: dict[str, Any]) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(network(), mesh, plan)


def tensor_parallel() -> nn.Module:
    return divided({"first": ColwiseParallel(), "last": RowwiseParallel()})


def sequence_parallel() -> nn.Module:
    """The activations between the divided layers are divided, too."""
    last = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    return divided({"first": ColwiseParallel(), "last": last, "norm": SequenceParallel()})


def ddp() -> nn.Module:
    return DistributedDataParallel(network())


def fsdp() -> nn.Module:
    model = network()
    for layer in (model.first, model.last, model):
        fully_shard(layer)
    return model


class Summing(Network):
    """It adds up its outputs itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD
        return funcol.all_reduce(super().forward(x), "sum", group)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def collectives_of(graphs: list[torch.fx.GraphModule]) -> Counter[str]:
    """How often the graphs call each functional collective."""
    targets = [node.target for graph in graphs for node in graph.graph.nodes]
    names = [target._opname for target in targets if hasattr(target, "_opname")]
    return Counter(name for name in names if name.startswith(("all_", "reduce_scatter")))


def trained(rank: Rank, case: str, is_compiled: bool = True) -> dict[str, Any]:
    """The parameters, and what torch.compile made of the model."""
    counters.clear()
    recorder, backward = AotEagerAndRecordGraphs(), contextlib.nullcontext
    if case == "DDP, backward compiled" and is_compiled:
        torch._dynamo.config.optimize_ddp = (
            "python_reducer"  # it averages by functional collectives
        )
        backward = functools.partial(compiled_autograd._enable, torch.compile(backend=recorder))
    model = CASES[case][0]()
    called = torch.compile(model, backend=recorder) if is_compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(whole(called(batch(rank.rank, step).unsqueeze(0))))
        with backward():
            loss.backward()
        optimizer.step()
    return {
        "parameters": [whole(each).detach() for each in model.parameters()],
        "breaks": dict(counters["graph_break"]),
        "graphs": len(recorder.graphs),
        "forward": collectives_of(recorder.fw_graphs),
        "backward": collectives_of(recorder.bw_graphs),
    }


Collectives = dict[str, int]
CASES: dict[str, tuple[Callable[[], nn.Module], Collectives, Collectives]] = {
    "tensor parallel": (tensor_parallel, {"all_reduce": 1}, {}),
    "sequence parallel": (
        sequence_parallel,
        {"reduce_scatter_tensor": 1},
        {"all_gather_into_tensor": 1},
    ),
    "functional": (lambda: network(Summing), {"all_reduce": 1}, {"all_reduce": 1}),
    "DDP": (ddp, {}, {}),
    "DDP, backward compiled": (ddp, {"all_reduce": 6}, {}),
    "FSDP2": (fsdp, {}, {}),
}
BROKEN_BY_TORCH = ("DDP", "FSDP2")  # Dynamo does not trace their hooks


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_graphs_break_only_where_they_do_on_gloo(case: str) -> None:
    _, forward, backward = CASES[case]
    ring = on_processes(trained, 2, case, backend="ring", timeout=TIMEOUT)
    gloo = on_processes(trained, 2, case, backend="gloo", timeout=TIMEOUT)
    eager = on_processes(trained, 2, case, False, backend="ring")
    for ours, theirs, plain in zip(ring, gloo, eager, strict=True):
        assert ours["breaks"] == theirs["breaks"]
        if case not in BROKEN_BY_TORCH:
            assert ours["breaks"] == {}
        assert ours["graphs"] == theirs["graphs"] > 0
        assert (ours["forward"], ours["backward"]) == (forward, backward)
        assert_alike(ours["parameters"], theirs["parameters"], tolerance=0)
        assert_alike(ours["parameters"], plain["parameters"])
