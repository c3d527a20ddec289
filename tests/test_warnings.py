"""Nothing warns in normal use; the programs of the README and the pages: test_readme.py."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from complaints import SHOW_ALL, complaints

from ringcomm.launch import run_ranks

PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ringcomm

dist.init_process_group("ring")
rank, n = dist.get_rank(), dist.get_world_size()
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    mine = torch.ones(64, dtype=dtype)
    every = torch.empty(64 * n, dtype=dtype)
    parts = [torch.empty(64, dtype=dtype) for _ in range(n)]
    dist.all_reduce(mine)
    dist.all_reduce(mine, async_op=True).wait()
    for functions in (ringcomm, dist):
        functions.all_reduce(mine)
        functions.all_gather(parts, mine)
        functions.broadcast(mine, 0)
        functions.reduce(mine, 0)
        functions.gather(mine, parts if rank == 0 else None, 0)
        functions.scatter(mine, parts if rank == 0 else None, 0)
        functions.reduce_scatter(mine, parts)
        functions.all_to_all_single(every, every.clone())
    ringcomm.all_gather_into_tensor(every, mine)
    ringcomm.reduce_scatter_tensor(mine, every)
    ringcomm.all_gather_into_tensor(every, mine, async_op=True).wait()
    ringcomm.reduce_scatter_tensor(mine, every, async_op=True).wait()
things = [None] * n
dist.all_gather_object(things, rank)
if rank == 0:
    dist.send(mine, 1)
else:
    dist.recv(mine, 0)
peer = 1 - rank
for work in dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, parts[0], peer)]
):
    work.wait()
group = ringcomm.new_group(algorithm="direct")
dist.all_reduce(mine, group=group)
dist.destroy_process_group(group)
dist.barrier()
dist.destroy_process_group()


ringcomm.init()


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()


def network():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


train(DistributedDataParallel(network()))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
train(fully_shard(network(), mesh=mesh))
ringcomm.destroy_process_group()
"""

COMMANDS = (
    "bench all -b 4 -e 1K -n 1 -w 0 --backends ring,ringcomm,gloo",
    "explain --beside hierarchical --world-size 4 --ranks-per-host 2 -o both.svg",
)


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(*SHOW_ALL)
    monkeypatch.chdir(tmp_path)


def test_the_api(tmp_path: Path) -> None:
    """Collectives, messages, groups, DDP and FSDP2, on two ranks."""
    program, errors = tmp_path / "program.py", tmp_path / "stderr"
    program.write_text(PROGRAM)
    with errors.open("wb") as stderr:
        run_ranks([str(program)], 2, timeout=100, stderr=stderr)
    assert complaints(errors.read_text()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str) -> None:
    result = python("-m", "ringcomm", *shlex.split(command))
    assert result.returncode == 0, result.stderr
    assert complaints(result.stderr) == []


@pytest.mark.parametrize(
    "program",
    [
        "import warnings; warnings.warn('old', DeprecationWarning)",
        "import sys; print('[W1123 06:00:00.0 x.cpp:1] Warning: old', file=sys.stderr)",
    ],
)
def test_a_warning_is_seen(program: str) -> None:
    """Of a program's own calls, whether Python's or those of torch's C++ half."""
    assert complaints(python("-c", program).stderr)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
