"""A script of two ranks: what a TCP connection from rank 1 to rank 0 carries, or how long it takes.

python probe.py goodput|round_trip SECONDS
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time

from hosts.report import report

WARM_UP = 0.3  # seconds until TCP has found its rate


def listening(address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.create_server(address, family=family)
    return listener.accept()[0]


def connected(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(address, timeout=20)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def received_rate(link: socket.socket) -> float:
    """Bytes per second, after the warm-up."""
    buffer = bytearray(1 << 20)
    began = last = time.monotonic()
    counted_from, nbytes = 0.0, 0
    while got := link.recv_into(buffer):
        last = time.monotonic()
        if counted_from:
            nbytes += got
        elif last > began + WARM_UP:
            counted_from = last
    return nbytes / (last - counted_from)


def send_for(link: socket.socket, seconds: float) -> None:
    data = bytes(1 << 20)
    end = time.monotonic() + WARM_UP + seconds
    while time.monotonic() < end:
        link.sendall(data)


def round_trip(link: socket.socket, seconds: float) -> float:
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 3:
        began = time.monotonic()
        link.sendall(b"?")
        link.recv(1)
        times.append(time.monotonic() - began)
    return statistics.median(times)


def echo(link: socket.socket) -> None:
    while link.recv(1):
        link.sendall(b"!")


def main() -> None:
    what, seconds = sys.argv[1], float(sys.argv[2])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    first = os.environ["RANK"] == "0"
    with (listening if first else connected)(address) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if what == "goodput":
            report(received_rate(link)) if first else send_for(link, seconds)
        else:
            report(round_trip(link, seconds)) if first else echo(link)


main()
