"""torch.distributed.checkpoint on ring."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from alike import also_on_hosts, assert_alike, batch, loss_of, make_network
from ranks import Rank, on_processes
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def make(rank: Rank) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make_network()
    mesh = init_device_mesh("cpu", (rank.world_size,))
    for layer in (model.first, model.inner, model.last):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.Adam(
        [p for layer in (model.first, model.inner, model.last) for p in layer.parameters()]
    )


def whole_state(model: nn.Module) -> dict[str, torch.Tensor]:
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def save(rank: Rank, path: str, asynchronous: bool) -> dict[str, torch.Tensor]:
    model, optimizer = make(rank)
    loss_of(model(batch(rank.rank, 0))).backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 7}
    if asynchronous:
        # A group of its own: calls of two threads in one group have no order among the ranks.
        meanwhile = dist.new_group()
        saving = dcp.async_save(state, checkpoint_id=path)
        tensor = torch.ones(1000)
        dist.all_reduce(tensor, group=meanwhile)
        assert tensor.sum() == 1000 * rank.world_size
        saving.result()
        dist.barrier()
    else:
        dcp.save(state, checkpoint_id=path)
    return whole_state(model)


def load(rank: Rank, path: str) -> tuple[dict[str, torch.Tensor], int]:
    model, optimizer = make(rank)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return whole_state(model), state["step"]


@also_on_hosts(1, "gloo")
def test_saved_by_two_ranks_and_loaded_by_three(tmp_path: Path) -> None:
    saved, _ = on_processes(save, 2, str(tmp_path), False, backend="ring")
    loaded = on_processes(load, 3, str(tmp_path), backend="ring")
    assert_alike(loaded[0], (saved, 7), tolerance=0)


def test_async_save(tmp_path: Path) -> None:
    saved, _ = on_processes(save, 2, str(tmp_path), True, backend="cpu:ring")
    loaded = on_processes(load, 2, str(tmp_path), backend="ring")
    assert_alike(loaded[0], (saved, 7), tolerance=0)
