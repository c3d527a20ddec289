"""Which processes share memory: by name, and in namespaces as containers have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm
from ringcomm.topology import Host, Topology

MINUTE = timedelta(minutes=1)
ROOT = Path(ringcomm.__file__).resolve().parents[1]


def init_on(rank: Rank, hosts: list[str]) -> None:
    os.environ["RINGCOMM_HOSTID"] = hosts[rank.rank]
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size, timeout=MINUTE
    )


def sums_and_tells(rank: Rank, hosts: list[str]) -> Topology:
    init_on(rank, hosts)
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    assert tensor[0] == rank.world_size
    return ringcomm.topology()


def test_ranks_of_one_name_are_on_one_host() -> None:
    for name, shown in [("node 1", "node 1"), ("", os.uname().nodename)]:
        for found in on_processes(sums_and_tells, 3, [name] * 3):
            assert found == Topology((Host(shown, (0, 1, 2)),), 0)


def is_refused(rank: Rank, hosts: list[str]) -> str:
    with pytest.raises(ValueError) as caught:
        init_on(rank, hosts)
    return str(caught.value)


def test_ranks_of_different_names_are_on_different_hosts() -> None:
    hosts = (Host("a", (0, 2)), Host("b", (1,)), Host("c", (3,)))
    results = on_processes(sums_and_tells, 4, ["a", "b", "a", "c"])
    assert results == [Topology(hosts, own) for own in (0, 1, 0, 2)]


def test_a_name_that_cannot_be() -> None:
    for name in ("x" * 64, "a\tb", "\xe9" * 32, "a\udcff"):
        for text in on_processes(is_refused, 1, [name]):
            assert f"RINGCOMM_HOSTID is {name!r}; it must be at most 63 bytes" in text


def groups_of_hosts(rank: Rank, hosts: list[str]) -> tuple[Topology, str]:
    os.environ["RINGCOMM_HOSTID"] = hosts[rank.rank]
    dist.init_process_group(
        "gloo", store=rank.store, rank=rank.rank, world_size=rank.world_size, timeout=MINUTE
    )
    groups = {
        host: ringcomm.new_group([r for r in range(rank.world_size) if hosts[r] == host])
        for host in sorted(set(hosts))
    }
    own = groups.pop(hosts[rank.rank])
    with pytest.raises(ValueError) as caught:
        ringcomm.topology(groups.popitem()[1])
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=own)
    assert tensor[0] == hosts.count(hosts[rank.rank])
    return ringcomm.topology(own), str(caught.value)


def test_topology_has_global_ranks() -> None:
    results = on_processes(groups_of_hosts, 5, ["a", "b", "b", "a", "b"])
    for rank, (found, text) in enumerate(results):
        expected = Host("a", (0, 3)) if rank in (0, 3) else Host("b", (1, 2, 4))
        assert found == Topology((expected,), 0)
        assert "this rank is not in the group" in text


def test_topology_without_a_group() -> None:
    with pytest.raises(ValueError, match="there is no default group"):
        ringcomm.topology()


# Ranks that are processes of one shell.
PROGRAM = """
import json, os, sys
from datetime import timedelta
directory, world_size, *ranks = sys.argv[1:]
rank = int(ranks[0])
for other in ranks[1:]:
    if os.fork() == 0:
        rank = int(other)
        ranks = []
        break
import torch
import torch.distributed as dist
import ringcomm
store = dist.FileStore(directory + "/store", int(world_size))
try:
    dist.init_process_group("ring", store=store, rank=rank, world_size=int(world_size),
                            timeout=timedelta(minutes=1))
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    result = f"{len(ringcomm.topology().hosts)} hosts, sum {tensor[0]:.0f}"
except Exception as error:
    result = str(error)
with open(f"{directory}/{rank}.json", "w") as file:
    json.dump(result, file)
for _ in ranks[1:]:
    os.wait()
"""
ALONE = "mount -t tmpfs tmpfs /dev/shm && "


def in_containers(directory: Path, containers: list[tuple[list[str], str, list[int]]]) -> list[str]:
    """Runs ranks in namespaces: options of unshare, what is to be done first, and ranks."""
    world_size = sum(len(ranks) for _, _, ranks in containers)
    running = []
    for namespaces, first, ranks in containers:
        python = [sys.executable, "-c", PROGRAM, str(directory), str(world_size), *map(str, ranks)]
        shell = ["sh", "-c", first + 'exec "$@"', "sh", *python]
        command = ["unshare", *namespaces, *shell] if namespaces else shell
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        running.append(subprocess.Popen(command, cwd=directory, env=environment))
    try:
        for process in running:
            process.wait(timeout=100)
    finally:
        for process in running:
            process.kill()
            process.wait()
    results = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(world_size)]
    assert not list(Path("/dev/shm").glob("ringcomm-*"))
    return results


PIDS = ["--mount", "--pid", "--fork", "--mount-proc"]
CAN_UNSHARE = (
    subprocess.run(["unshare", *PIDS, "sh", "-c", ALONE + "true"], capture_output=True).returncode
    == 0
)
needs_namespaces = pytest.mark.skipif(not CAN_UNSHARE, reason="this user may not make namespaces")


NO_SYS = "mount -t tmpfs tmpfs /proc/sys && "
ONLY_PROCESSES = "mount -t proc -o subset=pid proc /proc && "
NO_NAMESPACES = "mount -t tmpfs tmpfs /proc/$$/ns && "  # of the shell, which becomes Python
NO_NAME = "python3 -c 'import socket; socket.sethostname(\"\")' && "


@needs_namespaces
@pytest.mark.parametrize(
    ("namespaces", "first"),
    [
        (["--mount"], NO_SYS),
        (["--mount"], ONLY_PROCESSES),
        (["--mount"], NO_NAMESPACES),
        (["--uts"], NO_NAME),
        (["--uts", "--mount"], NO_NAME + NO_SYS + NO_NAMESPACES),
    ],
    ids=["no /proc/sys", "processes alone", "no /proc/self/ns", "no host name", "none of these"],
)
@pytest.mark.parametrize("with_others", [False, True])
def test_what_a_host_hides_keeps_no_group_from_being_made(
    namespaces: list[str], first: str, with_others: bool, tmp_path: Path
) -> None:
    containers = [(namespaces, first, [0]), (namespaces, first, [1])]
    if with_others:
        containers[0] = ([], "", [0])
    for text in in_containers(tmp_path, containers):
        assert text == "1 hosts, sum 2"


@needs_namespaces
def test_the_doctor_says_what_is_hidden(tmp_path: Path) -> None:
    program = "from ringcomm import host; print(host.guess(), *host.unknown(), sep='\\n')"
    shell = ["sh", "-c", f'{NO_NAME}{NO_SYS}{NO_NAMESPACES}exec "$@"', "sh"]
    said = subprocess.run(
        ["unshare", "--uts", "--mount", *shell, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RINGCOMM_HOSTID": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said[0].startswith("a host without a name, one with all processes whose memory it sees")
    assert "boot id cannot be read" in said[1] and "RINGCOMM_HOSTID" in said[1]
    assert "/proc/self/ns is hidden" in said[2]
    assert len(said) == 3


@needs_namespaces
def test_containers_with_process_numbers_and_files_of_their_own_are_hosts(tmp_path: Path) -> None:
    containers: list[tuple[list[str], str, list[int]]] = [
        ([], "", [0]),
        (PIDS, ALONE, [1, 2]),
        (PIDS, ALONE, [3]),
    ]
    for text in in_containers(tmp_path, containers):
        assert text == "3 hosts, sum 4"


@needs_namespaces
@pytest.mark.parametrize(
    ("namespaces", "first"),
    [(PIDS, ""), (["--mount"], ALONE)],
    ids=["one /dev/shm", "one kind of process numbers"],
)
def test_containers_that_share_one_thing_are_one_host(
    namespaces: list[str], first: str, tmp_path: Path
) -> None:
    for text in in_containers(tmp_path, [([], "", [0]), (namespaces, first, [1, 2])]):
        assert text == "1 hosts, sum 3"
