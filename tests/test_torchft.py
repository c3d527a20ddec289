"""torchft on the ring: its process group, and its Manager with replicas that die and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import DIED, Rank, outcomes

pytest.importorskip("torchft", reason="pip install torchft")

from ringcomm.stores import local_store
from ringcomm.torchft import ProcessGroupRing


def reconfigured(rank: Rank, port: int) -> None:
    group = ProcessGroupRing(timeout=timedelta(seconds=30))
    address = f"127.0.0.1:{port}"
    group.configure(f"{address}/first", "replica", rank.rank, 3, quorum_id=1)
    assert group.size() == 3 and group.getBackendName() == "torchft-ring"
    tensor = torch.full((100_000,), float(rank.rank))
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    assert tensor[0] == 3
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match="rank 1 will not answer"):
        group.allreduce([tensor], dist.AllreduceOptions()).wait()
    group.configure(f"{address}/second", "replica", rank.rank // 2, 2, quorum_id=2)
    tensor = torch.ones(5)
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    assert group.size() == 2 and tensor[0] == 2
    group.abort()


def test_process_group() -> None:
    store = local_store()
    first, killed, third = outcomes(reconfigured, 3, store.port)
    assert killed.ended == DIED
    for outcome in (first, third):
        assert outcome.ended == "returned", outcome.traceback


REPLICA = """
import os, signal, sys, time
from datetime import timedelta
import torch, torchft
from ringcomm.stores import local_store
from ringcomm.torchft import ProcessGroupRing
name, dies_at = sys.argv[1], int(sys.argv[2])
store = local_store()
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1")
torch.manual_seed(0)
network = torch.nn.Linear(2, 1)
manager = torchft.Manager(
    pg=ProcessGroupRing(timeout=timedelta(seconds=10)), min_replica_size=1, replica_id=name,
    timeout=timedelta(seconds=10), hostname="127.0.0.1",
    state_dict=network.state_dict, load_state_dict=network.load_state_dict,
)
optimizer = torchft.Optimizer(manager, torch.optim.SGD(network.parameters(), lr=0.1))
replicated = torchft.DistributedDataParallel(manager, network)
together = 0
while together < 5:
    time.sleep(0.02)  # a newcomer takes seconds to start
    if 0 <= dies_at <= manager.current_step():  # it may begin at a later one, with the other's
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    replicated(torch.ones(4, 2)).sum().backward()
    if optimizer.step() is not False and dies_at < 0 and manager.current_step() > 5:
        together += manager.num_participants() == 2
print("PARTICIPANTS", manager.num_participants(), "STEP", manager.current_step(), flush=True)
os._exit(0)
"""


class Replica:
    """A process whose output is kept in a file: a pipe that is not read would stop it."""

    def __init__(self, name: str, dies_at: int, lighthouse: str, folder: Path) -> None:
        self.output = folder / name
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", REPLICA, name, str(dies_at)],
                env={**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def report(self) -> str:
        """What became of it, without the lines that torchft writes at each step."""
        lines = self.output.read_text().splitlines()
        own = [line for line in lines if "torchft::manager" not in line]
        return "\n".join([f"{self.output.name}: {self.process.poll()}", *own[-60:], *lines[-5:]])


@pytest.mark.slow
def test_manager_with_a_replica_that_dies_and_one_that_comes(tmp_path: Path) -> None:
    from torchft._torchft import LighthouseServer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=2000
    )

    def start(name: str, dies_at: int = -1) -> Replica:
        return Replica(name, dies_at, lighthouse.address(), tmp_path)

    stays, dies = start("stays"), start("dies", dies_at=4)
    replicas = [stays, dies]
    # Stacks of those that hang.
    stop = threading.Timer(150, lambda: [r.process.send_signal(signal.SIGABRT) for r in replicas])
    stop.start()
    try:
        assert dies.process.wait() == -signal.SIGKILL, dies.report()
        replicas.append(start("comes"))
        ended = stays.process.wait()
        reports = "\n\n".join(replica.report() for replica in replicas)
        assert ended == 0 and "PARTICIPANTS 2" in stays.output.read_text(), reports
    finally:
        stop.cancel()
        for replica in replicas:
            replica.process.kill()
            replica.process.wait()
        lighthouse.shutdown()
