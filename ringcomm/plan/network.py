"""The network that a simulation runs on, and links to make one of."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ringcomm.usage import did_you_mean

_DURATION = r"([\d.]+)(ns|us|ms)"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}


@dataclass(frozen=True)
class Link:
    """What it takes to send a message from one rank to another.

    A message of nbytes occupies the sender's port, and as long the receiver's, for
    ``overhead + nbytes / bandwidth``, and is complete ``latency`` later if nothing is in its way
    (LogGP: Alexandrov, Ionescu, Schauser and Scheiman, JPDC 44(1), 1997).

    Args:
        latency: seconds, during which the ports are free.
        bandwidth: bytes per second, in each direction.
        overhead: seconds per message, during which the ports are occupied.
    """

    latency: float = 0.0
    bandwidth: float = math.inf
    overhead: float = 0.0

    @staticmethod
    def parse(text: str) -> Link:
        """A link of `LINKS` by its name, or by numbers such as 5us:25GB/s or 5us:25GB/s:1us.

        Raises:
            ValueError: `text` is neither.
        """
        if text in LINKS:
            return LINKS[text]
        match = re.fullmatch(rf"{_DURATION}:([\d.]+)GB/s(?::{_DURATION})?", text)
        try:
            if match and float(match[3]) > 0:
                overhead = float(match[4]) * _SECONDS[match[5]] if match[4] else 0.0
                return Link(float(match[1]) * _SECONDS[match[2]], float(match[3]) * 1e9, overhead)
        except ValueError:
            pass
        raise ValueError(
            f"must be one of {', '.join(LINKS)} or latency, a bandwidth above 0 and overhead such "
            f"as 5us:25GB/s or 5us:25GB/s:1us, got {text!r}{did_you_mean(text, LINKS)}"
        )

    def text(self) -> str:
        """By numbers, as `parse` reads it, to six digits."""
        overhead = f":{self.overhead * 1e6:g}us" if self.overhead else ""
        return f"{self.latency * 1e6:g}us:{self.bandwidth / 1e9:g}GB/s{overhead}"


@dataclass(frozen=True)
class Network:
    """Hosts of ranks. Rank ``h * ranks_per_host + l`` is the l-th on host h.

    Args:
        inside: the links inside a host.
        across: the links between hosts; as inside if None.
        ranks_per_host: None if all ranks share one host.
        nics_per_host: network cards, which a host's ranks share evenly; None for one per rank.
        reduce_bandwidth: received bytes that a rank adds to its own per second.
        egress: bytes per second that a rank sends at most to all ranks of its host together. With
            this or `ingress`, messages inside a host do not take turns at ports: those that are
            under way at the same time share the limits fairly, and each gets at most the bandwidth
            of `inside`. The slices of a step go beside each other, a slice's messages in the plan's
            order.
        ingress: the same for what a rank receives.
    """

    inside: Link
    across: Link | None = None
    ranks_per_host: int | None = None
    nics_per_host: int | None = None
    reduce_bandwidth: float = math.inf
    egress: float = math.inf
    ingress: float = math.inf


# Bandwidths are what data sheets promise in each direction; what is attained is less. Latencies are
# those which NCCL's tuning model (src/graph/tuning.cc, hwLat) has for one hop of a ring with the
# protocol Simple over NVLink, PCIe and a network. None of them is measured here.
LINKS = {
    "nvlink4": Link(3.4e-6, 450e9),  # H100 and H200 SXM: 18 links of 25 GB/s
    "pcie5": Link(5.7e-6, 64e9),  # 16 lanes of 32 GT/s
    "pcie4": Link(5.7e-6, 32e9),  # 16 lanes of 16 GT/s
    "ndr": Link(14e-6, 50e9),  # InfiniBand, 400 Gb/s
    "100gbe": Link(14e-6, 12.5e9),  # Ethernet, 100 Gb/s
}
