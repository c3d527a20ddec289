"""How a process leaves: forked children, Ctrl-C in a blocked call, the interpreter's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Outcome, Rank, on_processes, outcomes

import ringcomm

TIMES = 2  # that two processes at once are tried to end


def in_child(what: str) -> str:
    """What a forked child says after it has used or destroyed the group it inherited."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        tensor = torch.ones(100)
        said = "nothing"
        try:
            if what == "all_reduce":
                dist.all_reduce(tensor)
            elif what == "direct":
                ringcomm.all_reduce(tensor)
            elif what == "send":
                dist.send(tensor, 1 - dist.get_rank())
            elif what == "barrier":
                dist.barrier()
            else:
                dist.destroy_process_group()
        except dist.DistBackendError as error:
            said = str(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def with_children(rank: Rank) -> None:
    total = torch.full((50_000,), 100.0)
    dist.all_reduce(total)
    dist.all_reduce(total, async_op=True).wait()  # with a thread that the child does not have
    for what in ("all_reduce", "direct", "send", "barrier", "destroy"):
        if rank.rank == 0:
            said = in_child(what)
            assert said == "nothing" if what == "destroy" else "was forked from a member" in said
        for _ in range(3):
            tensor = torch.full((5,), 100.0)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [200.0] * 5


def test_a_forked_child_leaves_the_group_alone() -> None:
    on_processes(with_children, 2, backend="ring", timeout=120)


def interrupted(rank: Rank, what: str) -> str:
    dist.barrier()
    ringcomm.barrier()
    if rank.rank == 1:
        with pytest.raises(dist.DistBackendError) as caught:
            time.sleep(2)
            dist.all_reduce(torch.ones(3))
            dist.recv(torch.ones(3), 0)
        return str(caught.value)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    tensor = torch.ones(3)
    with pytest.raises(KeyboardInterrupt):
        if what == "direct":
            ringcomm.all_reduce(tensor)
        elif what == "dist":
            dist.all_reduce(tensor)
        elif what == "work":
            dist.all_reduce(tensor, async_op=True).wait()
        elif what == "recv":
            dist.recv(tensor, 1)
        else:
            ringcomm.recv(tensor, 1)
    return ""


@pytest.mark.parametrize("what", ["direct", "dist", "work", "recv", "direct recv"])
def test_ctrl_c_ends_a_blocked_call(what: str) -> None:
    started = time.monotonic()
    _, other = on_processes(interrupted, 2, what, backend="ring", timeout=60)
    assert time.monotonic() - started < 50  # the operations themselves may take 30 minutes
    if what in ("direct", "dist"):
        assert "rank 0 in all_reduce(count=3" in other
        assert "was interrupted by a signal, waiting for rank 1" in other


def interrupted_at_a_meeting(rank: Rank, what: str, waits: int) -> int:
    dist.barrier()
    if rank.rank == waits:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            if what == "shrink":
                ringcomm.shrink()
            else:
                ringcomm.monitored_barrier()
        rank.store.set("interrupted", "")
    else:
        rank.store.wait(["interrupted"])
    return ringcomm.shrink().size()


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("what", ["shrink", "monitored_barrier"])
def test_ctrl_c_ends_the_wait_at_a_meeting_and_shrink_goes_on(what: str, waits: int) -> None:
    # The group's timeout is 30 minutes.
    sizes = on_processes(interrupted_at_a_meeting, 2, what, waits, backend="ring", timeout=50)
    assert sizes == [2, 2]


def interrupted_in_set_up(rank: Rank) -> None:
    if rank.rank == 1:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        dist.init_process_group("ring", store=rank.store, rank=0, world_size=2)


def test_ctrl_c_ends_the_wait_for_other_ranks() -> None:
    on_processes(interrupted_in_set_up, 2, timeout=60)


CALLBACKS = """
import threading, time, torch, torch.distributed as dist, ringcomm
dist.init_process_group("ring", store=dist.HashStore(), rank=0, world_size=1)
def slow(future):
    time.sleep(0.01)
    return future.value()
for i in range(20):
    dist.all_reduce(torch.ones(2), async_op=True).get_future().then(slow)
"""

DAEMON = """
import threading, time, torch, torch.distributed as dist, ringcomm
store = dist.HashStore()
from ringcomm import backend
def rank(r):
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, r, 2
    options.timeout = __import__("datetime").timedelta(seconds=600)
    options.group_id = "threads"
    options.global_ranks_in_group = [0, 1]
    made[r] = backend._create(options, None)
made = {}
threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
def blocked():
    made[0].allreduce([torch.ones(4)]).wait()
def blocked_in_recv():
    made[0].recv([torch.ones(4)], 1, 0).wait()
for body in (blocked, blocked_in_recv):
    threading.Thread(target=body, daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.parametrize("script", [CALLBACKS, DAEMON], ids=["callbacks", "daemon"])
def test_the_end_of_the_interpreter(script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(ringcomm.__file__).parent.parent)}
    codes = []
    for _ in range(TIMES):
        running = [
            subprocess.Popen(
                [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for process in running:
            _, errors = process.communicate(timeout=120)
            codes.append((process.returncode, errors[-500:] if process.returncode else ""))
    assert all(code == 0 for code, _ in codes), codes


def has_ended(outcome: Outcome) -> bool:
    return outcome.ended != "has not ended"


def left_alone(rank: Rank) -> str:
    dist.barrier()
    if rank.rank == 0:
        sys.exit(0)  # without destroying anything
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(3))
    return str(caught.value)


def test_who_ends_without_a_word_has_left() -> None:
    results = outcomes(left_alone, 2, backend="ring", timeout=60)
    assert all(has_ended(outcome) for outcome in results)
    assert "rank 0 will not answer" in str(results[1].result)
