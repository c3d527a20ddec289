"""What the kernel counts of TCP connections, which links between hosts are compared by."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ringcomm.connections import Connection, connections

NBYTES = 3_000_000


@pytest.fixture(params=["IPv4", "IPv6", "IPv4 in IPv6 at one end"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    is_dual = request.param.startswith("IPv4 in IPv6")
    own, address = "127.0.0.1", "127.0.0.1"
    if request.param != "IPv4":
        own, address = ("::", address) if is_dual else ("::1", "::1")
    family = socket.AF_INET if request.param == "IPv4" else socket.AF_INET6
    try:
        listener = socket.create_server((own, 0), family=family, dualstack_ipv6=is_dual)
    except (OSError, ValueError) as error:
        pytest.skip(f"no {request.param} here: {error}")
    port = listener.getsockname()[1]
    with listener, socket.create_connection((address, port)) as client:
        server, _ = listener.accept()
        with server:
            yield client, server


def ours(sockets: tuple[socket.socket, ...]) -> list[Connection]:
    ports = {each.getsockname()[1] for each in sockets}
    found = [each for each in connections() if each.here[1] in ports]
    return sorted(found, key=lambda each: each.sent)


def test_what_was_sent_is_counted(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    assert all(each.sent <= 1 for each in ours(ends)), "opening counts as a byte"

    def receive() -> None:
        left = NBYTES
        while left:
            left -= len(server.recv(min(left, 1 << 16)))

    thread = threading.Thread(target=receive)
    thread.start()
    client.sendall(bytes(NBYTES))
    thread.join()
    silent, sender = ours(ends)
    assert silent.sent <= 1 and NBYTES <= sender.sent <= NBYTES + 1
    assert (silent.here, silent.there) == (sender.there, sender.here)
    assert sender.there == ("127.0.0.1" if "." in sender.there[0] else "::1", sender.there[1])
    assert 0 <= sender.seconds < 20 and silent.seconds < 0.1
    client.close()
    server.close()
    assert ours(()) == []


def test_a_receiver_without_room_takes_no_time_of_the_link(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """A rank that reads late must not make its link look slow."""
    client, server = ends
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            client.send(bytes(1 << 20))
    closed = threading.Event()
    closed.wait(1.0)  # the receiver's window is closed meanwhile
    client.setblocking(True)
    (_, sender) = ours(ends)
    assert sender.seconds < 0.7
    server.close()


def test_other_files_and_sockets_are_left_out() -> None:
    with (
        socket.socket() as unconnected,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        datagrams.connect(("127.0.0.1", 9))
        unconnected.bind(("127.0.0.1", 0))
        ports = {unconnected.getsockname()[1], datagrams.getsockname()[1]}
        assert unix.fileno() >= 0
        assert not [each for each in connections() if each.here[1] in ports]
