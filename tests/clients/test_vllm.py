"""vLLM's groups of CPUs on ringcomm, by its plug-in; vLLM is played where it is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from programs import python

STAND_IN = Path(__file__).with_name("vllm_stand_in")
NEEDS_VLLM = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="needs vllm: a build of it for CPUs"
)
PROGRAM = """
import os
import torch
import torch.distributed as dist
import vllm.distributed.parallel_state as parallel
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins

os.environ.setdefault("VLLM_DIST_IDENT", "test")  # as a worker of vLLM has it
load_general_plugins()
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with set_current_vllm_config(VllmConfig()):
    parallel.init_distributed_environment(
        world_size, rank, "env://", rank, current_platform.dist_backend
    )
    parallel.ensure_model_parallel_initialized(world_size, 1)
    group = parallel.get_tp_group()
    own = torch.arange(12.0).reshape(4, 3) + 100 * rank
    every = [torch.arange(12.0).reshape(4, 3) + 100 * each for each in range(world_size)]
    assert torch.equal(group.all_reduce(own.clone()), sum(every))
    assert torch.equal(group.all_gather(own, 1), torch.cat(every, 1))
    assert torch.equal(group.reduce_scatter(own, 0), sum(every).chunk(world_size)[rank])
    gathered = group.gather(own, 1, 0)
    assert torch.equal(gathered, torch.cat(every)) if rank == 1 else gathered is None
    compiled = torch.compile(lambda x: group.all_reduce(x + 1) - 1, fullgraph=True)
    assert torch.equal(compiled(own), sum(every) + world_size - 1)
    traced, _ = torch._dynamo.export(lambda x: group.all_reduce(x + 1))(own)
    assert "ringcomm.all_reduce_" in traced.code, traced.code
    communicator, backend = group.device_communicator, dist.get_backend(group.device_group)
    said = f"{type(communicator).__name__} {communicator.dist_module.__name__} {backend}\\n"
    os.write(1, said.encode())  # at once, as the other rank writes there, too
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("is_played", [True, pytest.param(False, marks=NEEDS_VLLM)])
@pytest.mark.parametrize("hosts", [1, 2])
def test_groups_are_on_ring(is_played: bool, hosts: int, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(on_hosts(hosts) + PROGRAM)
    found = python(
        *("-m", "torch.distributed.run", "--nproc-per-node", "2", script),
        PYTHONPATH=str(STAND_IN) if is_played else "",
        VLLM_PLUGINS="other,ringcomm",
    )
    assert found.returncode == 0, found.stderr
    said = [line for line in found.stdout.splitlines() if "ring" in line.lower()]
    assert said[-2:] == ["RingCommunicator ringcomm ring"] * 2


def on_hosts(hosts: int) -> str:
    """Two hosts are two names, one for each rank."""
    names = "RINGCOMM_HOSTID=os.environ['RANK'], RINGCOMM_LINKS='gloo'"
    return "" if hosts == 1 else f"import os\nos.environ.update({names})\n"


@pytest.mark.parametrize("named", [None, "", "other"])
def test_nothing_changes_where_it_is_not_named(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ringcomm.vllm

    monkeypatch.syspath_prepend(str(STAND_IN))
    if named is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", named)
    ringcomm.vllm.register()
    from vllm.platforms import CpuPlatform

    assert CpuPlatform.dist_backend == "gloo"
    assert "CpuCommunicator" in CpuPlatform.get_device_communicator_cls()
