"""The rendezvous of a launcher's ranks on one host, without a port that the user chooses.

Rank 0 makes the store on a port that the system chooses. It sends the port to the others over a
socket whose name follows from the job. The name is in Linux's abstract namespace: it leaves no
file, and it is free again when its process ends. Each side checks that the other process is of the
same user.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import socket
import struct
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

_ADDRESS = "127.0.0.1"
_PORT = struct.Struct("!H")
_LONGEST_PAUSE = 0.05  # seconds between attempts to reach rank 0

# How often this process has joined each job: each time has a socket name of its own.
_joined: collections.Counter[str] = collections.Counter()


def job_store(job: str, rank: int, world_size: int, timeout: timedelta) -> TCPStore:
    """The store that all ranks of a job share. All of them call this function equally often.

    Args:
        job: differs between jobs of a user on this host, and is the same for all ranks of one.
        timeout: how long to wait for rank 0; the store has the same timeout.

    Raises:
        torch.distributed.DistBackendError: rank 0 did not answer in time, another process is
            rank 0 already, or the socket of that name is another user's.
    """
    _joined[job] += 1
    text = f"{os.getuid()} {job} {_joined[job]}"
    # The job's name may come from environment variables that are not valid text.
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    name = f"\0ringcomm-{digest[:32]}"
    if rank != 0:
        port = _receive_port(name, rank, timeout)
        return TCPStore(_ADDRESS, port, world_size, is_master=False, timeout=timeout)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(name)
    except OSError:
        listener.close()
        raise dist.DistBackendError(
            "ring: another process of this job is rank 0 already. What a rank has started is not a "
            "rank itself; start it without the launcher's variables"
        ) from None
    listener.listen(world_size)
    listener.settimeout(timeout.total_seconds())
    store = local_store(timeout=timeout)
    answering = (listener, store.port, world_size - 1)
    threading.Thread(target=_send_port, args=answering, daemon=True).start()
    return store


def local_store(
    listening: socket.socket | None = None, timeout: timedelta = timedelta(minutes=5)
) -> TCPStore:
    """A store in this process, for processes of this host.

    Args:
        listening: the socket that the store listens on and owns from now on. The default is a
            port that the system chooses.
    """
    # By default the store listens on IPv6 and looks up the name of each client. That asks a DNS
    # server for 127.0.0.1, which takes seconds if no server answers.
    listening = listening or socket.create_server((_ADDRESS, 0), backlog=socket.SOMAXCONN)
    return TCPStore(
        _ADDRESS,
        listening.getsockname()[1],
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _send_port(listener: socket.socket, port: int, others: int) -> None:
    """Sends the port to as many processes of this user as there are other ranks."""
    with listener:
        while others > 0:
            try:
                connection, _ = listener.accept()
            except OSError:  # the timeout has passed
                return
            with (
                connection,
                contextlib.suppress(OSError),
            ):  # a process that has ended does not count
                if _user_of(connection) == os.getuid():
                    connection.sendall(_PORT.pack(port))
                    others -= 1


def _receive_port(name: str, rank: int, timeout: timedelta) -> int:
    deadline = time.monotonic() + timeout.total_seconds()
    pause = 0.001
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(name)
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                if _user_of(connection) != os.getuid():
                    raise dist.DistBackendError(
                        f"ring: the socket by which rank {rank} would find rank 0 is that of user "
                        f"{_user_of(connection)}; set MASTER_PORT to a free port instead"
                    )
                answer = connection.recv(_PORT.size, socket.MSG_WAITALL)
                if len(answer) == _PORT.size:
                    return int(_PORT.unpack(answer)[0])
            except OSError:  # rank 0 does not listen yet, or no longer
                pass
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise dist.DistBackendError(
        f"ring: rank {rank} waited {timeout.total_seconds():g} s for rank 0 of its job on this "
        "host. Timed out: is it running, and does it call ringcomm.init()? Where ranks do not "
        "share a network namespace, set MASTER_ADDR and MASTER_PORT"
    )


def _user_of(connection: socket.socket) -> int:
    """The id of the user whose process is at the other end."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return int(struct.unpack("3i", credentials)[1])
