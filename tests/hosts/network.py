"""Networks of hosts, and what happens to them.

Each host has a cable from its `eth0` to a port of a switch, all in namespaces. A cable is a veth
pair, or where it is to have a length or losses, a relay between two TAP devices. Both ends of it
are shaped by TBF, so that two hosts that send to a third share its rate; a burst of 1 ms passes
at once.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from hosts.job import Job, Program, placed, start_ranks
from hosts.namespaces import PREFIX, Host, Switch, own_directory, run_in

HERE = Path(__file__).parent
_BUILD = HERE.parents[1] / "build" / "hosts"
_PORT = 29500
INTERFACE = "eth0"
_QUEUE_MS = 20  # that a device holds of what it cannot send yet; then it drops
_COMPILER = os.environ.get("CC", "cc").split()
_CONGESTION_CONTROL = "cubic"  # Linux's default; the machine may have another
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}

Direction = Literal["in", "out", "both"]


@functools.cache
def missing() -> str | None:
    """Why no Network can be made here, or None."""
    needed = "hosts of their own need"
    if os.geteuid() != 0:
        return f"{needed} root"
    if not Path("/dev/net/tun").exists():
        return f"{needed} /dev/net/tun"
    for program in ("ip", "tc", "unshare", "nsenter", "sysctl", _COMPILER[0]):
        if not shutil.which(program):
            return f"{needed} the program {program}"
    try:
        Network(1).close()
    except OSError as error:
        return f"{needed} namespaces: {error}"
    return None


class Hosts:
    """What `Network` and `Local` have in common: starting jobs, which end with the context."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self._jobs: list[Job] = []

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for job in self._jobs:
            job.close()
        self._jobs.clear()

    def start(
        self,
        script: str | Path,
        *arguments: str,
        ranks_per_host: int = 1,
        placement: str | Sequence[int] = "block",
        env: Mapping[str, str] | None = None,
        warm: bool = True,
    ) -> Job:
        """Starts a rank of a Python script for each place, with torchrun's variables.

        Args:
            placement: "block" (hosts 0, 0, 1, 1), "round robin" (0, 1, 0, 1), or each rank's host.
            env: further variables, of all ranks.
            warm: in a process that has imported torch already, so that it starts in milliseconds,
                and whose end spares Python's clean-up. Else `python script` is run.
        """
        hosts_of_ranks = placed(placement, self.hosts, ranks_per_host)
        every = range(self.hosts)
        environments = [{**self._environment(host), **(env or {})} for host in every]
        keepers = [self._keeper(host) for host in every]
        rendezvous = self._rendezvous(hosts_of_ranks[0])
        job = start_ranks(
            script, arguments, hosts_of_ranks, environments, keepers, rendezvous, warm
        )
        self._jobs.append(job)
        return job

    def start_commands(
        self, commands: Mapping[int, Sequence[str]], env: Mapping[str, str] | None = None
    ) -> Job:
        """Starts a command per host, such as torchrun. In the job they are ranks 0, 1, ..."""
        programs = [
            Program(
                host,
                list(command),
                {**self._environment(host), **(env or {})},
                is_command=True,
                keeper=self._keeper(host),
            )
            for host, command in commands.items()
        ]
        self._jobs.append(Job(programs))
        return self._jobs[-1]

    def _environment(self, host: int) -> dict[str, str]:
        raise NotImplementedError

    def _keeper(self, host: int) -> int | None:
        raise NotImplementedError

    def _rendezvous(self, first: int) -> dict[str, str]:
        raise NotImplementedError


class Local(Hosts):
    """Processes of this machine, on loopback, that take RINGCOMM_HOSTID's word for their host."""

    def __enter__(self) -> Local:
        return self

    def _environment(self, host: int) -> dict[str, str]:
        return {"RINGCOMM_HOSTID": f"{PREFIX}host{host}", "GLOO_SOCKET_IFNAME": "lo"}

    def _keeper(self, host: int) -> None:
        return None

    def _rendezvous(self, first: int) -> dict[str, str]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}


class Network(Hosts):
    """Hosts joined by a switch.

    Args:
        rate: of each cable and direction, such as "100mbit" or "1gbit"; None: as fast as it goes.
        delay_ms: one way, from host to host, in milliseconds.
        loss: the probability that a packet is lost on its way.
        mtu: in bytes.
        ipv6: the hosts have IPv6 addresses and no others.
        names: what the hosts' own names resolve to: their "address", "loopback", as some
            distributions have it, or "nothing".
        shared_boot_id: as containers of one machine have it.

    Raises:
        OSError: it cannot be made here; `missing` says why.
    """

    def __init__(
        self,
        hosts: int = 2,
        *,
        rate: str | None = None,
        delay_ms: float = 0.0,
        loss: float = 0.0,
        mtu: int = 1500,
        ipv6: bool = False,
        names: Literal["address", "loopback", "nothing"] = "address",
        shared_boot_id: bool = False,
    ) -> None:
        super().__init__(hosts)
        self._rate = rate
        self._relay: subprocess.Popen[str] | None = None
        self._keepers: list[Host] = []
        self._ipv6 = ipv6
        self._directory = own_directory()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._switch = Switch()
        try:
            for host in range(hosts):
                text = self._hosts_file(host, names)
                shared = boot_id if shared_boot_id else None
                self._keepers.append(
                    Host(self.name(host), text, shared, Path(self._directory.name))
                )
            self._lay_cables(delay_ms, loss)
            self._connect(mtu)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def close(self) -> None:
        """Ends all that runs on the hosts, and the hosts."""
        super().close()
        for keeper in self._keepers:
            keeper.close()
        if self._relay is not None:
            self._relay.communicate()
        self._switch.close()
        self._directory.cleanup()

    def name(self, host: int) -> str:
        return f"{PREFIX}host{host}"

    def address(self, host: int) -> str:
        return f"fd77::{host + 1}" if self._ipv6 else f"10.77.0.{host + 1}"

    def keeper(self, host: int) -> int:
        """A process whose namespaces are the host."""
        return self._keepers[host].pid

    def cut(self, host: int) -> None:
        """Pulls the host's cable out of the switch."""
        self._in_switch(f"ip link set port{host} down")

    def drop(self, host: int, direction: Direction = "both") -> None:
        """Loses all that goes to the host, or comes from it; no process is notified."""
        if direction in ("in", "both"):
            self._in_switch(f"tc qdisc replace dev port{host} root blackhole")
        if direction in ("out", "both"):
            self._on(host, "tc qdisc replace dev eth0 root blackhole")

    def partition(self, *islands: Iterable[int]) -> None:
        """Only hosts of the same island reach each other."""
        for number, island in enumerate(islands):
            if number:
                self._in_switch(f"ip link add island{number} type bridge")
                self._in_switch(f"ip link set island{number} up")
                for host in island:
                    self._in_switch(f"ip link set port{host} master island{number}")

    def limit(self, host: int, rate: str) -> None:
        """Sends what comes from the host at a rate of its own, until it is healed."""
        self._on(host, f"tc qdisc replace dev eth0 root {_tbf(rate)}")

    def heal(self, host: int | None = None) -> None:
        """Undoes cut, drop and partition, by default of all hosts that are not powered off."""
        for each in range(self.hosts) if host is None else [host]:
            if not self._keepers[each].closed:
                self._in_switch(f"ip link set port{each} master switch up")
                self._shape(each)

    def power_off(self, host: int) -> None:
        """All that runs on the host is gone at once, and no other host is notified."""
        self.cut(host)
        self.drop(host, "out")
        self._keepers[host].close()

    def goodput(self, source: int = 0, target: int = 1, seconds: float = 1.0) -> float:
        """Bytes per second that one TCP connection carries."""
        return self._probe("goodput", source, target, seconds)

    def round_trip(self, source: int = 0, target: int = 1, seconds: float = 0.3) -> float:
        """Seconds that a byte takes there and back, median."""
        return self._probe("round_trip", source, target, seconds)

    def _probe(self, what: str, source: int, target: int, seconds: float) -> float:
        arguments = (what, str(seconds))
        # Rank 0 listens, for others connect to rank 0's host.
        with self.start(HERE / "probe.py", *arguments, placement=[target, source]) as job:
            return float(job.succeed(30 + seconds)[0].reports[0])

    def _environment(self, host: int) -> dict[str, str]:
        # Whatever the test's process has is not for here.
        return {"GLOO_SOCKET_IFNAME": INTERFACE}

    def _keeper(self, host: int) -> int:
        return self._keepers[host].pid

    def _rendezvous(self, first: int) -> dict[str, str]:
        return {"MASTER_ADDR": self.address(first), "MASTER_PORT": str(_PORT)}

    def _hosts_file(self, host: int, names: str) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for each in range(self.hosts):
            if each != host or names == "address":
                lines.append(f"{self.address(each)} {self.name(each)}")
            elif names == "loopback":
                lines.append(f"{'::1' if self._ipv6 else '127.0.1.1'} {self.name(each)}")
        return "\n".join(lines) + "\n"

    def _lay_cables(self, delay_ms: float, loss: float) -> None:
        """Makes eth0 on each host and its port on the switch."""
        if delay_ms == 0 and loss == 0:
            for host in range(self.hosts):
                pid = self.keeper(host)
                self._in_switch(f"ip link add port{host} type veth peer name eth0 netns {pid}")
            return
        ends = [
            f"{pid}:{device}"
            for host in range(self.hosts)
            for pid, device in ((self.keeper(host), "eth0"), (self._switch.pid, f"port{host}"))
        ]
        # From host to host there are two cables.
        delay = str(round(delay_ms * 1e6 / 2))
        per_million = str(round((1 - (1 - loss) ** 0.5) * 1e6))
        self._relay = subprocess.Popen(
            ["nice", "-n", "-10", str(_built_relay()), delay, per_million, *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != "ready\n":
            raise OSError("the relay cannot be started; it needs /dev/net/tun")

    def _connect(self, mtu: int) -> None:
        self._in_switch("ip link add switch type bridge")
        self._in_switch("ip link set switch up")
        up = f"mtu {mtu} txqueuelen 10000"
        network, length = ("fd77::/64", "64 nodad") if self._ipv6 else ("10.77.0.0/24", "24")
        # Namespaces may not choose any congestion control for all they do, but for a route.
        route = f"{network} proto kernel scope link dev eth0 congctl {_CONGESTION_CONTROL}"
        for host in range(self.hosts):
            self._in_switch(f"ip link set port{host} {up} master switch up")
            self._on(host, f"ip link set eth0 {up} up")
            self._on(host, f"ip addr add {self.address(host)}/{length} dev eth0")
            self._on(host, f"ip {'-6' if self._ipv6 else '-4'} route replace {route}")
            self._shape(host)

    def _shape(self, host: int) -> None:
        for run, device in ((self._in_switch, f"port{host}"), (self._at(host), "eth0")):
            root = f"dev {device} root"
            if self._rate is not None:
                run(f"tc qdisc replace {root} {_tbf(self._rate)}")
            elif {"blackhole", "tbf"} & set(run(f"tc qdisc show {root}").split()):
                run(f"tc qdisc del {root}")

    def _in_switch(self, command: str) -> str:
        return run_in(self._switch.pid, command.split())

    def _on(self, host: int, command: str) -> str:
        return run_in(self.keeper(host), command.split())

    def _at(self, host: int) -> functools.partial[str]:
        return functools.partial(self._on, host)


def _tbf(rate: str) -> str:
    per_second = bytes_per_second(rate)
    burst = max(per_second // 1000, 16384)
    limit = max(per_second * _QUEUE_MS // 1000, 1 << 18)
    return f"tbf rate {rate} burst {burst} limit {limit}"


def bytes_per_second(rate: str) -> int:
    """Such as 125_000_000 of "1gbit"."""
    for unit, factor in _UNITS.items():
        if rate.endswith(unit):
            return round(float(rate.removesuffix(unit)) * factor / 8)
    raise ValueError(f"rate is {rate!r}, not a number and one of {', '.join(_UNITS)}")


def _built_relay() -> Path:
    source, program = HERE / "relay.c", _BUILD / "relay"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        _BUILD.mkdir(parents=True, exist_ok=True)
        own = program.with_suffix(f".{os.getpid()}")  # others may be building it, too
        subprocess.run([*_COMPILER, "-O2", "-o", str(own), str(source)], check=True)
        own.replace(program)
    return program
