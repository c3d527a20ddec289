"""torchrun and mpirun with two hosts, as docs/pages/howto/hosts.md has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hosts import Network, mpi
from hosts.conftest import needs_hosts
from hosts.job import ROOT

TRAIN = """
import os, socket
import torch
import torch.distributed as dist
from hosts.report import report
dist.init_process_group("ring")
rank = dist.get_rank()
tensor = torch.full((1000,), float(rank + 1))
dist.all_reduce(tensor)
report({
    "sum": tensor.unique().tolist(),
    "host": socket.gethostname(),
    "local_rank": os.environ["LOCAL_RANK"],
    "group_rank": os.environ["GROUP_RANK"],
    "master": os.environ["MASTER_ADDR"],
})
dist.destroy_process_group()
"""


DOCUMENT = (ROOT / "docs/pages/howto/hosts.md").read_text()


def torchrun(script: Path) -> list[str]:
    """The document's line, for this script."""
    (line,) = re.findall(r"^torchrun (.*) train.py$", DOCUMENT, re.M)
    options = line.replace("node0", "rc-host0").split()
    return [sys.executable, "-m", "torch.distributed.run", *options, str(script)]


def test_the_readme_has_the_same_lines() -> None:
    lines = re.findall(r"^((?:torchrun --nnodes|mpirun --host) .*)train.py$", DOCUMENT, re.M)
    readme = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) == 2 and {f"{line}direct.py" for line in lines} < set(readme)


@needs_hosts
@pytest.mark.parametrize("interface", [None, "eth0"])
def test_torchrun(tmp_path: Path, interface: str | None) -> None:
    """Where a host's name is that of its loopback, the interface has to be set."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    env = {"OMP_NUM_THREADS": "1"}
    if interface is not None:
        env["GLOO_SOCKET_IFNAME"] = interface
    with Network(2, names="address" if interface is None else "loopback") as network:
        job = network.start_commands({host: torchrun(script) for host in range(2)}, env=env)
        job.succeed(120)
        found = [report for rank in range(4) for report in job.reports(rank)]
    assert [one["sum"] for one in found] == [[10.0]] * 4
    # Which host comes first is decided by which came first to the rendezvous.
    first, second = found[0]["host"], found[2]["host"]
    assert {first, second} == {"rc-host0", "rc-host1"}
    assert [one["host"] for one in found] == [first, first, second, second]
    assert [one["local_rank"] for one in found] == ["0", "1", "0", "1"]
    assert [one["group_rank"] for one in found] == ["0", "0", "1", "1"]


MPI = """
import os
import torch
import torch.distributed as dist
rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{what}"]) for what in ("RANK", "SIZE"))
dist.init_process_group("gloo", rank=rank, world_size=size)
tensor = torch.full((1000,), float(rank + 1))
dist.all_reduce(tensor)
print(rank, os.uname().nodename, tensor.unique().tolist(), flush=True)
dist.destroy_process_group()
"""


@needs_hosts
@pytest.mark.skipif(mpi.missing() is not None, reason=str(mpi.missing()))
def test_mpirun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MPI)
    with Network(2) as network:
        command = mpi.mpirun(network, 2, tmp_path, "-x", "MASTER_ADDR", "-x", "MASTER_PORT")
        meeting = {"MASTER_ADDR": network.address(0), "MASTER_PORT": "29500"}
        done = subprocess.run(
            [*command, sys.executable, str(script)],
            env={**os.environ, **mpi.ENVIRONMENT, **meeting, "GLOO_SOCKET_IFNAME": "eth0"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "rc-host" in line) == [
        f"{rank} rc-host{rank // 2} [10.0]" for rank in range(4)
    ]
