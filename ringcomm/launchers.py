"""What launchers' environment variables say, and how ranks find each other by it."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import default_pg_timeout

from ringcomm.environment import MOST_RANKS, integer, is_integer, value_of
from ringcomm.processes import parent_and_start
from ringcomm.stores import job_store

MOST_PORT = (1 << 16) - 1
LAST_STEP = 0xFFFFFFF0  # of srun; batch scripts and the shells of salloc have higher numbers


class Launcher(NamedTuple):
    """Environment variables in which a launcher says what a process is.

    Args:
        name: of the launcher.
        rank: this holds the process's rank.
        world_size: this holds the number of ranks.
        on_host: a variable that has the value that follows if all ranks are on one host, or if that
            is None, the value of `world_size`. Empty: no variable says so.
        job: these together name the job.
        started_by: where they are not set, the process that started the ranks names it; it does
            not have these variables as a rank has them. Empty: that is not known.
    """

    name: str
    rank: str
    world_size: str
    on_host: tuple[str, str | None] = ("", None)
    job: tuple[str, ...] = ()
    started_by: tuple[str, ...] = ()


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE"),
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        on_host=("OMPI_COMM_WORLD_LOCAL_SIZE", None),
        job=("PMIX_NAMESPACE",),
    ),
    Launcher(
        "MPICH",
        "PMI_RANK",
        "PMI_SIZE",
        on_host=("MPI_LOCALNRANKS", None),
        job=("I_MPI_HYDRA_UUID",),  # Intel's
        started_by=("PMI_RANK", "PMI_SIZE", "PMI_FD"),
    ),
    Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        on_host=("SLURM_STEP_NUM_NODES", "1"),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)


def launched() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    return _launcher() is not None


def is_rank() -> bool:
    """As `launched`, for a command that else starts its ranks: says why a step of one task is one.

    In `srun --pty bash` that is unexpected.
    """
    launcher = _launcher()
    if launcher is not None and launcher.name == "srun" and value_of(launcher.world_size) == "1":
        print(
            "# one rank, as srun started this step with one task (SLURM_STEP_NUM_TASKS=1); after "
            "`unset SLURM_STEP_NUM_TASKS SLURM_STEP_ID` this command starts its ranks itself",
            file=sys.stderr,
        )
    return launcher is not None


def rendezvous(timeout: timedelta | None) -> dict[str, Any]:
    """What init_process_group must know to find the other ranks.

    Raises:
        ValueError: the environment is incomplete, or has no number where one must be; the message
            names what is missing or wrong.
        torch.distributed.DistBackendError: as `ringcomm.stores.job_store`.
    """
    launcher = _launcher()
    if launcher is None or _is_alone(launcher):
        return {"store": HashStore(), "rank": 0, "world_size": 1}
    wanted = [launcher.rank, launcher.world_size]
    meets = ("MASTER_PORT", "MASTER_ADDR")
    job = None if any(map(value_of, meets)) else _job(launcher)
    if job is None:
        wanted += meets if launcher.name == "torchrun" or _on_hosts(launcher) else meets[:1]
    if missing := [name for name in wanted if not value_of(name)]:
        raise ValueError(
            f"this process seems to be started by {launcher.name}, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. All ranks need their rank, the world "
            "size and one free port to meet at, such as MASTER_PORT=29500; where they are on "
            "several hosts, also the address of rank 0's, such as MASTER_ADDR=node0"
        )
    world_size = integer(launcher.world_size, 1, 1, MOST_RANKS)
    rank = integer(launcher.rank, 0, 0, world_size - 1)
    if launcher.name == "torchrun":
        return {"init_method": "env://"}
    ranks = {"rank": rank, "world_size": world_size}
    if job is not None:
        return {"store": job_store(job, rank, world_size, timeout or default_pg_timeout), **ranks}
    address = value_of("MASTER_ADDR", "127.0.0.1")
    port = integer("MASTER_PORT", 0, 1, MOST_PORT)
    return {"init_method": f"tcp://{address}:{port}", **ranks}


def _launcher() -> Launcher | None:
    having = (one for one in LAUNCHERS if value_of(one.rank) or value_of(one.world_size))
    return next((one for one in having if one.name != "srun" or _is_step_of_srun()), None)


def _is_step_of_srun() -> bool:
    """Whether srun started this process. A batch script's own process has SLURM_PROCID, too."""
    if step := value_of("SLURM_STEP_ID"):
        return is_integer(step, 0, LAST_STEP)
    return bool(value_of("SLURM_STEP_NUM_TASKS"))


def _is_alone(launcher: Launcher) -> bool:
    """Whether this is the only rank, and no rendezvous is needed; torchrun's ranks have its own."""
    ranks = value_of(launcher.rank), value_of(launcher.world_size)
    return launcher.name != "torchrun" and ranks == ("0", "1")


def _on_hosts(launcher: Launcher) -> bool:
    """Whether the launcher says that ranks are on several hosts."""
    variable, value = launcher.on_host
    return bool(value_of(variable)) and value_of(variable) != (
        value or value_of(launcher.world_size)
    )


def _job(launcher: Launcher) -> str | None:
    """What only the ranks of this job have in common, if all are on this host; None if unknown."""
    variable, _ = launcher.on_host
    if not value_of(variable) or _on_hosts(launcher):
        return None
    if launcher.job and all(map(value_of, launcher.job)):
        return " ".join(f"{name}={value_of(name)}" for name in launcher.job)
    return _parent_of_all(launcher.started_by) if launcher.started_by else None


def _parent_of_all(variables: tuple[str, ...]) -> str | None:
    """The nearest ancestor that has not these variables as this process has them, and its start.

    None where /proc cannot be read.
    """
    process = os.getppid()
    try:
        ours = _environment("self", variables)
        while process > 1:
            theirs = _environment(str(process), variables)
            parent, start = parent_and_start(process)
            if theirs != ours:
                return f"process {process} started {start}"
            process = parent
    except OSError:
        pass
    return None


def _environment(process: str, variables: tuple[str, ...]) -> dict[bytes, bytes]:
    """The values of these variables that the process was started with."""
    entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    found = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
    return {name: found[name] for name in map(str.encode, variables) if name in found}
