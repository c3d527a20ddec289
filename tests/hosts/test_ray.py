"""Ray Train on two nodes of this machine that play hosts, as docs/pages/howto/hosts.md has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hosts.job import ROOT

pytest.importorskip("ray.train.torch", reason="pip install 'ray[train]'")

from ray.cluster_utils import Cluster

NODES = 2
WORKERS = 4  # as the document has it
STEPS = 3

TRAIN = f"""
import os

import torch
import torch.distributed as dist
from ray.train.torch import prepare_model


def train():
    import ringcomm

    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range({STEPS}):
        optimizer.zero_grad()
        model(torch.full((4, 8), rank + 0.1 * step)).square().mean().backward()
        optimizer.step()
    found = {{
        "backend": dist.get_backend(),
        "hosts": {{host.name: host.ranks for host in ringcomm.topology().hosts}},
        "parameters": [parameter.detach() for parameter in model.parameters()],
    }}
    torch.save(found, f"{{os.environ['DIRECTORY']}}/rank{{rank}}")


"""


def recipe() -> str:
    (found,) = re.findall(r"```python\n(import ray\n.*?)```", DOCUMENT, re.S)
    return found


DOCUMENT = (ROOT / "docs/pages/howto/hosts.md").read_text()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Of a cluster that has just room for the workers. They get their node's environment."""
    environment = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    for name, value in {**environment, "DIRECTORY": str(tmp_path), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster()
    try:
        for node in range(NODES):
            cluster.add_node(
                num_cpus=WORKERS // NODES,
                object_store_memory=100 << 20,
                env_vars={"RINGCOMM_HOSTID": f"node{node}"},
            )
        yield cluster.address
    finally:
        cluster.shutdown()


def trained_in_one_process() -> list[torch.Tensor]:
    torch.manual_seed(0)  # all begin with rank 0's
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(WORKERS):
            loss = model(torch.full((4, 8), rank + 0.1 * step)).square().mean()
            (loss / WORKERS).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.slow
def test_ray_train(address: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN + recipe())
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = trained_in_one_process()
    for rank in range(WORKERS):
        found = torch.load(tmp_path / f"rank{rank}")
        assert found["backend"] == "ring"
        assert sorted(found["hosts"]) == ["node0", "node1"]
        assert sorted(found["hosts"].values()) == [(0, 1), (2, 3)]
        for ours, theirs in zip(found["parameters"], expected, strict=True):
            torch.testing.assert_close(ours, theirs)
