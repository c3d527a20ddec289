"""The TCP connections of this process, and what the kernel counts of each."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass

# Where struct tcp_info of Linux (include/uapi/linux/tcp.h) has tcpi_bytes_acked, and
# tcpi_busy_time with tcpi_rwnd_limited behind it.
_BYTES_ACKED, _BUSY_TIME, _SIZE = 120, 168, 184

End = tuple[str, int]  # address and port


@dataclass(frozen=True)
class Connection:
    """A TCP connection.

    Attributes:
        here: the end of this process.
        there: the other end.
        sent: bytes that the other end has acknowledged.
        seconds: in which bytes were on their way or waited to be sent, and the other end had room
            for them.
    """

    here: End
    there: End
    sent: int
    seconds: float


def connections() -> list[Connection]:
    """Those that are open now, if the system counts such things.

    Raises:
        OSError: /proc does not show this process.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        # A file may be closed meanwhile, or be no socket, or a socket that is not connected.
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as looked_at:
                    found += _look(looked_at)
    return found


def _look(looked_at: socket.socket) -> list[Connection]:
    is_tcp = looked_at.type == socket.SOCK_STREAM and looked_at.family in (
        socket.AF_INET,
        socket.AF_INET6,
    )
    if not is_tcp:
        return []
    info = looked_at.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    if len(info) < _SIZE:
        return []
    (sent,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    busy, without_room = struct.unpack_from("=QQ", info, _BUSY_TIME)
    here, there = map(_end, (looked_at.getsockname(), looked_at.getpeername()))
    return [Connection(here, there, sent, (busy - without_room) / 1e6)]


def _end(address: tuple[str, int]) -> End:
    """IPv4 in IPv6 is shown as IPv4, as the other end may see it."""
    return address[0].removeprefix("::ffff:"), address[1]
