"""ringcomm.shrink and torch's shrink_group: all that live go on, with the same ranks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import DIED, Rank, on_processes, outcomes
from values import torch_2_14

import ringcomm
from ringcomm.stores import local_store

SHORT = timedelta(seconds=2)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def check_group(ranks: list[int], group: dist.ProcessGroup | None = None) -> None:
    """A sum, a message, a broadcast and a large sum among the ranks that are in the group."""
    n = dist.get_world_size(group)
    own = dist.get_rank(group)
    assert n == len(ranks)
    for count in (5, 300_000):
        tensor = torch.full((count,), float(ranks[own]))
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full((count,), float(sum(ranks))))
    received = torch.zeros(3)
    if n > 1:
        work = dist.isend(torch.full((3,), float(own)), group_dst=(own + 1) % n, group=group)
        dist.recv(received, group_src=(own - 1) % n, group=group)
        work.wait()
        assert received[0] == (own - 1) % n


def goes_on(rank: Rank, dead: list[int], when: str) -> list[int]:
    dist.barrier()
    if rank.rank in dead and when == "between":
        die()
    tensor = torch.ones(2_000_000)
    with pytest.raises(dist.DistBackendError):
        for i in range(100_000):
            if rank.rank in dead and i == 3:
                die()
            work = dist.all_reduce(tensor, async_op=when == "async")
            if work is not None:
                work.wait()
    old = dist.group.WORLD
    new = ringcomm.shrink()
    assert new is dist.group.WORLD and old is not new
    living = [r for r in range(rank.world_size) if r not in dead]
    assert dist.get_rank() == living.index(rank.rank)
    check_group(living)
    assert dist.get_backend() == "ring"
    with pytest.raises((ValueError, dist.DistBackendError)):
        dist.all_reduce(tensor, group=old)
    # Other groups are made of the new ranks.
    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        check_group(living[:2], pair)
    return living


@pytest.mark.parametrize("when", ["between", "inside", "async"])
@pytest.mark.parametrize("dead", [[0], [1], [3], [0, 2]])
def test_survivors_go_on(dead: list[int], when: str) -> None:
    for rank, outcome in enumerate(outcomes(goes_on, 4, dead, when, backend="ring")):
        assert outcome.ended == (DIED if rank in dead else "returned"), outcome.traceback


def again_and_again(rank: Rank) -> int:
    for last in range(rank.world_size - 1, 0, -1):
        if dist.get_rank() == last:
            die()
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(4))
        ringcomm.shrink()
    return dist.get_world_size()


def test_down_to_one() -> None:
    *survived, _, _, _ = outcomes(again_and_again, 4, backend="ring")
    assert survived[0].result == 1, survived[0].traceback


def of_groups(rank: Rank) -> None:
    named = dist.new_group([0, 2, 3])
    dist.barrier()
    if rank.rank == 3:
        die()
    if rank.rank in (0, 2):
        smaller = ringcomm.shrink(named)
        assert dist.get_process_group_ranks(smaller) == [0, 2]
        check_group([0, 2], smaller)
        with pytest.raises(ValueError, match="closed"):
            ringcomm.shrink(named)
    assert dist.get_world_size() == 4  # the default group is as it was


def of_split(rank: Rank) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    split = backend.split(rank.store, [0, 1, 3], backend.options)
    dist.barrier()
    if rank.rank == 3:
        die()
    if rank.rank in (0, 1):
        smaller, ranks, _ = ringcomm._C.shrink(split, [], None)
        tensor = torch.ones(3)
        smaller.allreduce([tensor]).wait()
        assert ranks == [0, 1] and tensor[0] == 2
    assert dist.get_world_size() == 4


@pytest.mark.parametrize("groups", [of_groups, pytest.param(of_split, marks=torch_2_14)])
def test_groups_beside_the_default_group(groups: Callable[[Rank], None]) -> None:
    results = outcomes(groups, 4, backend="ring")
    assert [r.ended for r in results] == ["returned"] * 3 + [DIED], results


def without_a_living_rank(rank: Rank) -> str:
    dist.barrier()
    if rank.rank == 1:
        rank.store.wait(["gone on"])
        with pytest.raises(dist.DistBackendError) as raised:
            dist.all_reduce(torch.ones(3))
        with pytest.raises(dist.DistBackendError, match="gone on without this one"):
            ringcomm.shrink()
        return str(raised.value)
    ringcomm.shrink(exclude=[1])
    check_group([0, 2])
    rank.store.set("gone on", "1")
    return ""


def test_a_living_rank_is_left_out() -> None:
    _, left_out, _ = on_processes(without_a_living_rank, 3, backend="ring")
    assert "shrunk to ranks 0 and 2" in left_out


def one_never_calls(rank: Rank) -> str:
    dist.barrier()
    if rank.rank == 1:
        rank.store.wait(["gone on"])
        return ""
    with pytest.raises(dist.DistBackendError) as raised:
        ringcomm.shrink(timeout=SHORT)
    ringcomm.shrink(exclude=[1], timeout=timedelta(seconds=30))
    check_group([0, 2])
    rank.store.set("gone on", "1")
    return str(raised.value)


def test_a_rank_that_does_not_call_is_named_and_can_be_left_out() -> None:
    first, _, third = on_processes(one_never_calls, 3, backend="ring")
    for text in (first, third):
        assert "waiting for rank 1" in text or "gave up" in text, text
    assert "Timed out after" in first + third and "its timeout is 2 s" in first + third


def disagree(rank: Rank) -> str:
    dist.barrier()
    with pytest.raises(dist.DistBackendError) as raised:
        ringcomm.shrink(exclude=[2] if rank.rank == 0 else [])
    rank.store.set(f"raised {rank.rank}", "1")
    rank.store.wait([f"raised {r}" for r in range(3)])
    return str(raised.value)


def test_ranks_that_exclude_different_ones() -> None:
    for text in on_processes(disagree, 3, backend="ring"):
        assert "not with the same ranks to exclude" in text or "gave up" in text


def torchs_shrink(rank: Rank, flags: int) -> None:
    dist.barrier()
    if rank.rank == 1:
        die()
    new = dist.shrink_group([1], shrink_flags=flags)
    assert new is dist.group.WORLD
    check_group([0, 2, 3])
    rank.store.set(f"checked {rank.rank}", "1")
    rank.store.wait([f"checked {r}" for r in (0, 2, 3)])  # the others need the last for their check
    if dist.get_rank() == 2:
        die()
    ringcomm.shrink()  # of what torch has made
    check_group([0, 2])


@pytest.mark.parametrize("flags", [0, 1])
def test_shrink_group(flags: int) -> None:
    results = outcomes(torchs_shrink, 4, flags, backend="ring")
    assert [r.ended for r in results] == ["returned", DIED, "returned", DIED], results


def forgets_one(rank: Rank) -> str:
    dist.barrier()
    if rank.rank in (1, 2):
        die()
    time.sleep(0.5)
    with pytest.raises(dist.DistBackendError) as raised:
        dist.shrink_group([1])
    ringcomm.shrink()
    check_group([0, 3])
    return str(raised.value)


def test_shrink_group_gets_all_dead_ranks() -> None:
    first, _, _, last = outcomes(forgets_one, 4, backend="ring")
    for outcome in (first, last):
        assert outcome.ended == "returned", outcome.traceback
        assert "rank 2 is gone, too, and must be excluded" in outcome.result


def leaves(rank: Rank) -> None:
    dist.barrier()
    if rank.rank == 0:
        dist.destroy_process_group()
        rank.store.wait(["gone on"])
        return
    ringcomm.shrink()
    check_group([1, 2])
    rank.store.set("gone on", "1")


def test_a_rank_that_left_counts_as_dead() -> None:
    on_processes(leaves, 3, backend="ring")


def aborted(rank: Rank) -> None:
    dist.barrier()
    if rank.rank == 2:
        die()
    dist.group.WORLD.abort()
    ringcomm.shrink()
    check_group([0, 1])


def test_an_aborted_group() -> None:
    *survivors, _ = outcomes(aborted, 3, backend="ring")
    assert [r.ended for r in survivors] == ["returned"] * 2, survivors


def at_random(rank: Rank, delays: dict[int, float]) -> list[int]:
    """Some ranks kill themselves some time after all have begun to shrink."""
    dist.barrier()
    if rank.rank in delays:
        # Not a thread, which Python would start and switch to when it likes.
        script = f"sleep {delays[rank.rank]:.6f}; kill -9 {os.getpid()}"
        subprocess.Popen(["sh", "-c", script])
    for _ in range(rank.world_size + 1):
        ringcomm.shrink(timeout=timedelta(seconds=30))
        try:
            while True:
                members: list[int] = [-1] * dist.get_world_size()
                dist.all_gather_object(members, rank.rank)
                if not delays.keys() & set(members):
                    return members
                time.sleep(0.005)
        except dist.DistBackendError:
            continue
    raise AssertionError("more deaths than ranks")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_deaths_while_they_agree(seed: int) -> None:
    draw = random.Random(seed)
    world_size = draw.randrange(3, 7)
    dying = draw.sample(range(world_size), draw.randrange(1, world_size))
    delays = {rank: draw.expovariate(1 / 0.01) for rank in dying}
    results = outcomes(at_random, world_size, delays, backend="ring")
    living = [rank for rank in range(world_size) if rank not in dying]
    for rank in living:
        assert results[rank].ended == "returned", results[rank].traceback
        assert results[rank].result == living


def on_another_backend(rank: Rank) -> None:
    assert ringcomm.all_reduce(torch.ones(3)) is None  # a ring rides on it
    with pytest.raises(TypeError, match=r'only groups of the backend "ring".*gloo'):
        ringcomm.shrink()
    mixed = dist.new_group(backend="cpu:gloo,cuda:ring")
    with pytest.raises(TypeError, match="cpu:gloo,cuda:ring"):
        ringcomm.shrink(mixed)


def test_groups_of_other_backends_are_refused() -> None:
    on_processes(on_another_backend, 2, backend="gloo")


def misuse(rank: Rank) -> None:
    for call, error, words in [
        (lambda: ringcomm.shrink("all"), TypeError, "got str"),
        (lambda: ringcomm.shrink(exclude=[7]), ValueError, r"holds \[7\], and .* \[0, 1\]"),
        (lambda: ringcomm.shrink(exclude=[rank.rank]), ValueError, "is to be excluded, and calls"),
        (lambda: ringcomm.shrink(dist.GroupMember.NON_GROUP_MEMBER), ValueError, "not a member"),
    ]:
        with pytest.raises(error, match=words):
            call()
    dist.barrier()
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="no default group"):
        ringcomm.shrink()


def test_misuse() -> None:
    on_processes(misuse, 2, backend="ring")


def meets_in_a_file(rank: Rank, path: Path) -> None:
    store = dist.FileStore(str(path), rank.world_size)
    dist.init_process_group("ring", store=store, rank=rank.rank, world_size=rank.world_size)
    dist.barrier()
    if rank.rank == 0:
        die()
    ringcomm.shrink()
    check_group([1, 2])


def test_a_store_in_a_file(tmp_path: Path) -> None:
    _, *survivors = outcomes(meets_in_a_file, 3, tmp_path / "store")
    assert [r.ended for r in survivors] == ["returned"] * 2, survivors


STORE_IN_RANK_0 = """
import os, signal, sys
from datetime import timedelta
import torch, torch.distributed as dist
import ringcomm
rank = int(sys.argv[1])
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), 2, is_master=rank == 0)
dist.init_process_group("ring", store=store, rank=rank, world_size=2)
dist.barrier()
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(3))
except dist.DistBackendError:
    pass
try:
    ringcomm.shrink()
except dist.DistBackendError as error:
    assert "store does not answer" in str(error) and "outlives the ranks" in str(error), error
    print("raised")
os._exit(0)
"""


def test_a_store_that_died_with_its_rank() -> None:
    port = str(local_store().port)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", STORE_IN_RANK_0, str(rank), port],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert "raised" in texts[1], texts[1]
