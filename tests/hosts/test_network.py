"""What hosts have apart, what the network between them does, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from ahead import is_builder

from hosts import Local, Network
from hosts.conftest import needs_hosts
from hosts.job import PATIENCE, ROOT
from hosts.network import bytes_per_second

# What each rank's script sees of its host, and of the others.
LOOK = """
import os, socket
from hosts.report import report
names = [line.split()[-1] for line in open("/etc/hosts")]
report({
    "name": socket.gethostname(),
    "address": socket.gethostbyname(socket.gethostname()),
    "shm": os.stat("/dev/shm").st_dev,
    "boot_id": open("/proc/sys/kernel/random/boot_id").read(),
    "pid": os.getpid(),
    "devices": sorted(os.listdir("/sys/class/net")),
    "hostid": os.environ.get("RINGCOMM_HOSTID"),
    "place": [os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")],
    "master": os.environ["MASTER_ADDR"],
})
"""

# Rank 0 receives from the others every 20 ms, as long as packets arrive, and reports all of it.
CHAT = """
import os, socket, sys, time
from hosts.report import report
rank = int(os.environ["RANK"])
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
address = os.environ["MASTER_ADDR"], 5000
if rank == 0:
    link.bind(address)
    report("listens")
    while True:
        report(link.recv(100).decode())
while True:
    try:
        link.sendto(f"{rank} {time.monotonic()}".encode(), address)
    except OSError:
        pass
    time.sleep(0.02)
"""


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


@needs_hosts
def test_hosts_have_apart_what_machines_have(tmp_path: Path) -> None:
    with Network(2) as network:
        look = script(tmp_path, LOOK)
        job = network.start(look, ranks_per_host=2, placement="round robin")
        found = [result.reports[0] for result in job.succeed()]
    assert [one["name"] for one in found] == ["rc-host0", "rc-host1"] * 2
    assert [one["address"] for one in found] == ["10.77.0.1", "10.77.0.2"] * 2
    assert {one["master"] for one in found} == {"10.77.0.1"}
    for apart in ("shm", "boot_id"):
        values = [one[apart] for one in found]
        assert values[0] == values[2] != values[1] == values[3]
    assert os.stat("/dev/shm").st_dev not in {one["shm"] for one in found}
    assert all(one["pid"] < 100 for one in found)
    assert all(one["devices"] == ["eth0", "lo"] for one in found)
    places = [
        ["0", "4", "0", "2"],
        ["1", "4", "0", "2"],
        ["2", "4", "1", "2"],
        ["3", "4", "1", "2"],
    ]
    assert [one["place"] for one in found] == places


@needs_hosts
def test_names_and_boot_ids_as_containers_have_them(tmp_path: Path) -> None:
    with Network(2, names="loopback", shared_boot_id=True) as network:
        found = [r.reports[0] for r in network.start(script(tmp_path, LOOK)).succeed()]
    assert {one["address"] for one in found} == {"127.0.1.1"}
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert {one["boot_id"] for one in found} == {boot_id}


def test_hosts_without_root(tmp_path: Path) -> None:
    with Local(2) as local:
        job = local.start(script(tmp_path, LOOK), ranks_per_host=2)
        found = [result.reports[0] for result in job.succeed()]
    assert [one["hostid"] for one in found] == ["rc-host0", "rc-host0", "rc-host1", "rc-host1"]
    assert [one["place"][2] for one in found] == ["0", "1", "0", "1"]
    assert {one["master"] for one in found} == {"127.0.0.1"}


@needs_hosts
@pytest.mark.parametrize(
    ("rate", "delay_ms", "least"), [("200mbit", 0, 0.8), ("200mbit", 2, 0.8), ("1gbit", 0, 0.5)]
)
def test_rate(rate: str, delay_ms: float, least: float) -> None:
    """Never faster; slower by what passes unused where timers come later than a burst lasts.

    A busy virtual machine's do, each time by as much, so that the fastest cable loses most.
    """
    with Network(2, rate=rate, delay_ms=delay_ms) as network:
        measured = [network.goodput(seconds=0.7) / bytes_per_second(rate)]
        while measured[-1] < least and len(measured) < 5:
            measured.append(network.goodput(seconds=0.7) / bytes_per_second(rate))
        assert max(measured) <= 1.05, measured
        assert measured[-1] >= least, measured


# Rank 0 takes what the others send, once all do, and reports what it gets in a second.
SHARE = """
import os, select, socket, time
from hosts.report import report
address = os.environ["MASTER_ADDR"], 5000
if os.environ["RANK"] != "0":
    while True:
        try:
            link = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    try:
        while True:
            link.sendall(bytes(1 << 16))
    except OSError:
        raise SystemExit
listener = socket.create_server(address)
links = [listener.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
def taken(seconds):
    began, nbytes = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        for link in select.select(links, [], [], 0.1)[0]:
            nbytes += len(link.recv(1 << 20))
    return nbytes / (time.monotonic() - began)
taken(0.5)  # what has been waiting
report(taken(1.0))
"""


@needs_hosts
def test_two_that_send_to_a_third_share_its_rate(tmp_path: Path) -> None:
    with Network(3, rate="100mbit") as network:
        rate = network.start(script(tmp_path, SHARE)).wait()[0].reports[0]
    assert rate <= 1.1 * bytes_per_second("100mbit")


@needs_hosts
@pytest.mark.parametrize("ipv6", [False, True])
def test_delay(ipv6: bool) -> None:
    with Network(2, delay_ms=20, ipv6=ipv6) as network:
        assert 0.040 <= network.round_trip() < 0.080
    with Network(2, ipv6=ipv6) as network:
        assert network.round_trip() < 0.020


@needs_hosts
def test_loss() -> None:
    """A loss of 5 % in each direction, which is seen in the rate of one connection."""
    with Network(2, delay_ms=1) as network:
        whole = network.goodput(seconds=0.5)
    with Network(2, delay_ms=1, loss=0.05) as network:
        assert network.goodput(seconds=0.5) < whole / 4


class Seen:
    """What rank 0 of CHAT has received from each rank."""

    def __init__(self, network: Network, tmp_path: Path) -> None:
        self.job = network.start(script(tmp_path, CHAT))
        assert self.job.hear(0) == "listens"
        self.others = set(range(1, network.hosts))

    def seen_ranks(self) -> set[int]:
        """The ranks that it receives from now: what they sent was sent after this call."""
        now, found = time.monotonic(), set()
        time.sleep(0.25)
        for line in self.job.reports(0)[1:]:
            rank, sent = line.split()
            if float(sent) > now:
                found.add(int(rank))
        return found

    def expect(self, whom: set[int]) -> None:
        """It may take a moment until a change is seen, but then it stays."""
        deadline = time.monotonic() + 20
        while self.seen_ranks() != whom:
            assert time.monotonic() < deadline, f"{self.seen_ranks()} are seen, not {whom}"
        assert self.seen_ranks() == whom


@needs_hosts
@pytest.mark.parametrize("delay_ms", [0, 1])
def test_cuts_and_partitions(tmp_path: Path, delay_ms: float) -> None:
    with Network(3, rate="100mbit", delay_ms=delay_ms) as network:
        seen = Seen(network, tmp_path)
        seen.expect({1, 2})
        network.cut(1)
        seen.expect({2})
        network.heal(1)
        seen.expect({1, 2})
        network.drop(1, "out")
        seen.expect({2})
        network.heal()
        network.drop(1, "in")  # its packets still arrive; only what goes to it is lost
        seen.expect({1, 2})
        network.drop(0, "in")
        seen.expect(set())
        network.heal()
        seen.expect({1, 2})
        network.partition([0, 2], [1])
        seen.expect({2})
        network.heal()
        seen.expect({1, 2})
        network.power_off(2)
        seen.expect({1})
        assert seen.job.running() == [0, 1]
        network.heal()  # not of what is off
        assert seen.seen_ranks() == {1}
        assert seen.job.results()[2].status == -signal.SIGKILL


@needs_hosts
def test_drop_in_holds_back_answers() -> None:
    with Network(2) as network:
        network.drop(1, "in")
        probe = Path(__file__).with_name("probe.py")
        with network.start(probe, "round_trip", "0.1") as job:
            time.sleep(1)
            assert job.running() == [0, 1]
            network.heal(1)
            job.succeed()


class Traces:
    """The processes under a process, the namespaces they are in and their directories."""

    def __init__(self, process: psutil.Process) -> None:
        children = process.children(recursive=True)
        self.processes = [child for child in children if not is_builder(child)]
        own = spaces(process)
        self.spaces = set().union(*map(spaces, self.processes)) - own
        self._directories = list(Path(tempfile.gettempdir()).glob(f"rc-{process.pid}-*"))

    def running(self) -> list[psutil.Process]:
        """Those that are there still; a namespace, its mounts and its devices are while one is."""
        inside = [one for one in psutil.process_iter() if spaces(one) & self.spaces]
        return inside + [one for one in self.processes if one.is_running() and not is_zombie(one)]

    def directories(self) -> list[Path]:
        """Those that are there still."""
        return [path for path in self._directories if path.exists()]

    def end(self) -> None:
        """Waits for the processes. Before it has returned no new host is to be made: the numbers
        of namespaces that are gone are given to new ones."""
        deadline = time.monotonic() + PATIENCE
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self.running()


def is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def spaces(process: psutil.Process) -> set[str]:
    try:
        return {os.readlink(f"/proc/{process.pid}/ns/{kind}") for kind in ("net", "mnt", "pid")}
    except OSError:
        return set()  # it has ended


@needs_hosts
def test_nothing_is_left(tmp_path: Path) -> None:
    here = psutil.Process()
    before = here.children(recursive=True)
    with Network(2, delay_ms=1) as network:
        network.start(script(tmp_path, CHAT)).hear(0)
        traces = Traces(here)
        assert len(traces.spaces) == 1 + 2 * 3
        assert len(traces.directories()) == 2
        assert len(traces.running()) > 10
    traces.processes = [one for one in traces.processes if one not in before]
    traces.end()
    assert not traces.directories()


KILLED = """
import sys, time
from hosts import Network
if __name__ == "__main__":
    network = Network(2, delay_ms=1)
    job = network.start(sys.argv[1], ranks_per_host=2)
    job.hear(0)
    print("chats", flush=True)
    time.sleep(100)
"""


@needs_hosts
def test_nothing_is_left_by_a_test_that_was_killed(tmp_path: Path) -> None:
    victim = tmp_path / "victim.py"
    victim.write_text(KILLED)
    process = subprocess.Popen(
        [sys.executable, str(victim), str(script(tmp_path, CHAT))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "chats\n"
    traces = Traces(psutil.Process(process.pid))
    assert len(traces.spaces) == 1 + 2 * 3
    process.kill()
    process.wait()
    process.stdout.close()
    traces.end()
    assert len(traces.directories()) == 2
    with Network(1):  # removes them
        assert not traces.directories()
