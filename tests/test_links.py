"""The engines between hosts, as torch's builds have them, and the choice of one.

tests/cpp/engine_contract.h says more of what engines promise; it runs where there is no torch.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import tools
from torch.distributed import FileStore, HashStore

from ringcomm import _toolchain, links, tuning
from ringcomm.plan import LINKS, Link
from ringcomm.tuning import Tuning

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 60.0  # seconds
LARGE = 4 << 20  # bytes

needs_ucx = pytest.mark.skipif(
    not _toolchain.ucx_libraries(), reason="no UCX: its wheel, libucx-cu13, is not installed"
)
ENGINES = ["gloo", pytest.param("ucx", marks=needs_ucx)]


@pytest.fixture(params=ENGINES)
def engines(request) -> list[Any]:
    """Those of two ranks, to be used by threads."""
    links.wanted()
    store = HashStore()
    return [tools().Engine(request.param, store, rank, 2) for rank in range(2)]


def on_threads(body: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def content(sender: int, number: int, nbytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2 * number + sender)
    return torch.randint(256, (nbytes,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("ahead", [True, False])
def test_any_order_and_size(engines, ahead: bool) -> None:
    """Rooms of the messages' sizes and larger ones; receives posted before or after."""
    sizes = [0, 1, 55, 56, 57, 64, 1000, 8000, 8001, 70_000, LARGE]
    cases = [(nbytes, room) for nbytes in sizes for room in (0, 7, 100) if nbytes + room > 0]
    posted = threading.Barrier(2)

    def body(rank: int) -> None:
        numbers = list(range(len(cases)))
        peer = 1 - rank
        receives, sends = {}, []

        def receive() -> None:
            random.Random(1).shuffle(numbers)
            for n in numbers:
                room = torch.full((sum(cases[n]),), 99, dtype=torch.uint8)
                receives[n] = engines[rank].recv(peer, n % 3, n, room), room

        if ahead:
            receive()
            posted.wait()
        random.Random(2).shuffle(numbers)
        for n in numbers:
            sends.append(engines[rank].send(peer, n % 3, n, content(rank, n, cases[n][0])))
        if not ahead:
            posted.wait()
            receive()
        for n, (request, room) in receives.items():
            nbytes = cases[n][0]
            assert request.wait(PATIENCE), (n, engines[rank].failure(peer))
            assert request.nbytes == nbytes
            assert torch.equal(room[:nbytes], content(peer, n, nbytes))
            assert (room[nbytes:] == 99).all()
        for request in sends:
            assert request.wait(PATIENCE)

    on_threads(body)


def test_large_messages_wait_on_their_sender(engines) -> None:
    large = engines[0].send(1, 0, 0, torch.zeros(LARGE, dtype=torch.uint8))
    word = torch.zeros(8)
    word_sent = engines[0].send(1, 1, 0, word)
    assert exchange(engines, engines[1].recv(0, 1, 0, torch.empty(8)))
    assert exchange(engines, word_sent)
    assert large.pending
    assert exchange(engines, engines[1].recv(0, 0, 0, torch.empty(LARGE, dtype=torch.uint8)))
    assert exchange(engines, large)


def exchange(engines, request: Any) -> bool:
    """Whether it comes to a good end as both ranks wait."""
    for _ in range(int(PATIENCE * 100)):
        for engine in engines:
            engine.progress()
        if request.wait(0.01) or request.failed:
            break
    return not request.pending and not request.failed


def connect(engines) -> None:
    sent = engines[0].send(1, 0, 0, torch.ones(9))
    assert exchange(engines, engines[1].recv(0, 0, 0, torch.empty(9)))
    assert exchange(engines, sent)


def test_too_long_for_the_room(engines) -> None:
    sent = engines[0].send(1, 0, 0, torch.zeros(10))
    received = engines[1].recv(0, 0, 0, torch.empty(9))
    assert not exchange(engines, received)
    assert received.failed
    assert exchange(engines, sent)


def test_cancelled_receives(engines) -> None:
    """One that is waited for, and one behind it; what comes later arrives."""
    connect(engines)
    first, second = (engines[1].recv(0, 0, n, torch.empty(9)) for n in (1, 2))
    third = engines[1].recv(0, 0, 3, torch.empty(9))
    second.cancel()
    first.cancel()
    assert first.failed and second.failed and third.pending
    sent = engines[0].send(1, 0, 3, torch.ones(9))
    assert exchange(engines, third) and exchange(engines, sent)
    assert engines[1].failure(0) == ""


def test_cancelled_send(engines) -> None:
    connect(engines)
    send = engines[0].send(1, 0, 1, torch.zeros(LARGE))
    engines[0].progress()
    assert send.pending
    send.cancel()
    assert send.failed


@pytest.mark.parametrize("name", ENGINES)
def test_who_never_comes(name: str) -> None:
    """The end of an engine ends what is pending, without a wait for the peer."""
    links.wanted()
    engine = tools().Engine(name, HashStore(), 0, 2)
    pending = [engine.send(1, 0, 0, torch.zeros(9)), engine.recv(1, 0, 0, torch.zeros(9))]
    engine.progress()
    assert all(request.pending for request in pending)
    assert not engine.flushed()  # with the engine, the send would be lost
    pending[0].cancel()
    assert pending[0].failed and engine.flushed()
    assert engine.failure(1) == ""


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def threads_that_come_last() -> Iterator[None]:
    """The threads that are started meanwhile run when nobody else does."""
    own = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *own)


def test_what_a_peer_sent_before_it_left(engines) -> None:
    """It has all come when the connection ends, but the threads that wait have not seen it."""
    connect(engines)
    never = engines[1].recv(0, 0, 1, torch.empty(9))
    with threads_that_come_last():
        arrivals = [engines[1].recv(0, 1, 0, torch.empty(9))]
    with busy_processors():
        arrivals += [engines[1].recv(0, 1, n, torch.empty(9)) for n in range(1, 100)]
        # A message that nobody holds is cancelled, and whoever holds one holds its engine.
        sent = [engines[0].send(1, 1, n, torch.ones(9)) for n in range(100)]
        while any(message.pending for message in sent):
            for engine in engines:
                engine.progress()
        sent.clear()
        engines.pop(0)
        assert not never.wait(PATIENCE) and never.failed
    for arrival in arrivals:
        assert arrival.wait(PATIENCE) and not arrival.failed


def test_who_loses_a_connection_lets_the_peer_know() -> None:
    """Gloo's stays open otherwise, and the peer would wait for what nobody sends any more."""
    links.wanted()
    store = HashStore()
    engines = [tools().Engine("gloo", store, rank, 2) for rank in range(2)]
    connect(engines)
    exact = 8  # the first stream whose messages have their whole length at once
    never = [engine.recv(1 - rank, exact, 1, torch.empty(9)) for rank, engine in enumerate(engines)]
    never[0].cancel()
    assert engines[0].failure(1) == "a message was cancelled that was under way"
    assert not never[1].wait(PATIENCE) and never[1].failed
    assert engines[1].failure(0) != ""


def test_who_goes_while_the_peer_connects() -> None:
    """The address of gloo's is there, but who has left it will not connect, and says so."""
    links.wanted()
    first = HashStore()
    engines = [tools().Engine("gloo", first, rank, 2) for rank in range(2)]
    connect(engines)
    store = HashStore()
    store.set("ringcomm/link/0", "gloo\n")
    record = "ringcomm/link/gloo/0-1/0/0"
    store.set(record, first.get(record))
    late = tools().Engine("gloo", store, 1, 2)
    never = late.recv(0, 0, 0, torch.empty(9))
    store.wait(["ringcomm/link/gloo/0-1/0/1"])
    assert late.failure(0) == ""
    store.set("ringcomm/link/0", "none\nit could not join the group: there is not enough memory")
    engines.clear()
    until = time.monotonic() + PATIENCE
    while not late.failure(0) and time.monotonic() < until:
        time.sleep(0.01)
    # The one with the greater port connects, and gloo had accepted that already.
    said = ("it could not join the group: there is not enough memory", "Connection reset by peer")
    assert any(text in late.failure(0) for text in said), late.failure(0)
    assert not never.wait(PATIENCE) and never.failed


VICTIM = """
import sys
import torch
from torch.distributed import FileStore
from ringcomm import _C, links
links.wanted()
engine = _C.testing.Engine(sys.argv[1], FileStore(sys.argv[2], 2), 1, 2)
assert engine.recv(0, 0, 0, torch.empty(9)).wait(60)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ENGINES)
def test_a_process_is_killed(name: str, tmp_path: Path) -> None:
    links.wanted()
    place = str(tmp_path / "store")
    testing = tools()  # before there is a process that a skip would leave behind
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, name, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    engine = testing.Engine(name, FileStore(place, 2), 0, 2)
    assert engine.send(1, 0, 0, torch.zeros(9)).wait(PATIENCE)
    pending = [engine.send(1, 0, 1, torch.zeros(LARGE)), engine.recv(1, 0, 0, torch.zeros(9))]
    assert victim.stdout is not None and victim.stdout.readline() == b"ready\n"
    assert engine.failure(1) == ""
    victim.send_signal(signal.SIGKILL)
    for request in pending:
        assert not request.wait(PATIENCE)
        assert request.failed
    assert engine.failure(1) != ""
    assert engine.send(1, 0, 2, torch.zeros(9)).failed
    victim.communicate()


@needs_ucx
@pytest.mark.parametrize(("own", "other"), [("gloo", "ucx"), ("ucx", "gloo")])
def test_ranks_with_different_engines(own: str, other: str) -> None:
    links.wanted()
    store = HashStore()
    engine = tools().Engine(own, store, 0, 2)
    there = tools().Engine(other, store, 1, 2)
    assert not engine.recv(1, 0, 0, torch.zeros(9)).wait(PATIENCE)
    assert f"it uses {other} between hosts, and this rank {own}" in engine.failure(1)
    assert there.describe().startswith(other)


# ---- The choice -------------------------------------------------------------------------------


def test_the_variable_is_checked(monkeypatch) -> None:
    monkeypatch.setenv("RINGCOMM_LINKS", "tcp")
    with pytest.raises(ValueError, match="RINGCOMM_LINKS is 'tcp'; it must be one of auto, ucx"):
        links.describe()
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    assert links.describe() == "gloo"


def test_how_long_a_host_may_be_silent(monkeypatch) -> None:
    monkeypatch.delenv("RINGCOMM_HOST_SILENCE", raising=False)
    assert links.heartbeat_timeout() == 4
    monkeypatch.setenv("RINGCOMM_HOST_SILENCE", "2.5")
    assert links.heartbeat_timeout() == 2.5
    for text in ("ever", "nan", "0.5", "-1", "86401"):
        monkeypatch.setenv("RINGCOMM_HOST_SILENCE", text)
        with pytest.raises(ValueError, match=f"RINGCOMM_HOST_SILENCE is '{text}'; it must be sec"):
            links.heartbeat_timeout()


def test_the_network_between_hosts_is_as_it_was_set(monkeypatch) -> None:
    monkeypatch.delenv("RINGCOMM_ACROSS", raising=False)
    assert links.across() == Link(latency=pytest.approx(50e-6), bandwidth=pytest.approx(1.25e9))
    monkeypatch.setenv("RINGCOMM_ACROSS", "10ms:0.125GB/s:1us")
    assert links.across() == Link(10 * 1e-3, 0.125 * 1e9, overhead=1 * 1e-6)
    monkeypatch.setenv("RINGCOMM_ACROSS", "ndr")
    assert links.across() == LINKS["ndr"]
    for text in ("far", "1us:0GB/s"):
        monkeypatch.setenv("RINGCOMM_ACROSS", text)
        refusal = rf"RINGCOMM_ACROSS must be one of .* or latency, .* above 0 .*'{text}'"
        with pytest.raises(ValueError, match=refusal):
            links.across()


def test_the_network_between_hosts_is_else_what_was_measured(monkeypatch, tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    monkeypatch.setenv("RINGCOMM_TUNING", str(file))
    monkeypatch.delenv("RINGCOMM_ACROSS", raising=False)
    tuning.write(file, Tuning("", {}, (), "2ms:0.125GB/s"))
    assert links.across() == Link(2 * 1e-3, 0.125 * 1e9)
    monkeypatch.setenv("RINGCOMM_ACROSS", "ndr")
    assert links.across() == LINKS["ndr"]
    monkeypatch.setenv("RINGCOMM_TUNING", str(tmp_path / "nowhere.json"))
    assert links.across() == LINKS["ndr"]
    monkeypatch.delenv("RINGCOMM_ACROSS")
    with pytest.raises(OSError, match=r"nowhere\.json"):
        links.across()


@needs_ucx
@pytest.mark.parametrize("choice", ["auto", "ucx"])
def test_ucx_comes_first(monkeypatch, choice: str) -> None:
    monkeypatch.setenv("RINGCOMM_LINKS", choice)
    assert links.describe().startswith("ucx 1.")


def in_a_process_without_ucx(choice: str) -> str:
    program = f"""
from ringcomm import _C
_C.links.look_for_ucx_in("/nowhere")
try:
    print(_C.links.describe({choice!r}))
except RuntimeError as error:
    print("RuntimeError:", error)
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout


def test_without_ucx() -> None:
    why = "UCX cannot be loaded: /nowhere/libucs.so.0: cannot open shared object file"
    assert in_a_process_without_ucx("auto").startswith(f"gloo, as {why}")
    assert in_a_process_without_ucx("ucx").startswith(
        f"RuntimeError: UCX is to carry bytes between hosts, but {why}"
    )
