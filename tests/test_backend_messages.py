"""send and recv through torch.distributed: tags, order, any source, batches."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from values import MOVED, assert_same_bits

COUNTS = [0, 1, 17, 40_000, 700_000]


def pattern(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(count) % 251 + rank).to(torch.uint8).to(dtype)


def ping_pong(rank: Rank) -> None:
    for count in COUNTS:
        received = torch.empty(count)
        if rank.rank == 0:
            dist.send(pattern(0, count), 1)
            dist.recv(received, 1)
            assert_same_bits(received, pattern(1, count), count)
        else:
            assert dist.recv(received, 0) == 0
            assert_same_bits(received, pattern(0, count), count)
            dist.send(pattern(1, count), 0)


def test_ping_pong() -> None:
    on_processes(ping_pong, 2, backend="ring")


def every_dtype(rank: Rank) -> None:
    for dtype in MOVED:
        data = (torch.arange(30 * dtype.itemsize) % 2).to(torch.uint8).view(dtype)
        if rank.rank == 0:
            dist.send(data, 1)
        else:
            received = torch.zeros(30, dtype=dtype)
            dist.recv(received, 0)
            assert_same_bits(received, data, dtype)


def test_every_dtype() -> None:
    on_processes(every_dtype, 2, backend="ring")


def both_send_first(rank: Rank) -> None:
    """isend must not wait for its peer."""
    peer = 1 - rank.rank
    sends = [dist.isend(pattern(rank.rank + i, 300_000), peer) for i in range(5)]
    for i in range(5):
        received = torch.empty(300_000)
        dist.recv(received, peer)
        assert_same_bits(received, pattern(peer + i, 300_000), f"message {i} comes in order")
    for send in sends:
        send.wait()


def test_both_send_first() -> None:
    on_processes(both_send_first, 2, backend="ring")


def tags_cross(rank: Rank) -> None:
    for count in (10, 100_000):
        if rank.rank == 0:
            for tag in (1, 2, 3):
                dist.isend(pattern(tag, count), 1, tag=tag).wait()
        else:
            for tag in (3, 1, 2):
                received = torch.empty(count)
                dist.recv(received, 0, tag=tag)
                assert_same_bits(received, pattern(tag, count), f"tag {tag}")


def test_tags_are_received_in_any_order() -> None:
    on_processes(tags_cross, 2, backend="ring")


def any_source(rank: Rank) -> list[int]:
    if rank.rank != 0:
        for _ in range(3):
            dist.send(pattern(rank.rank, 1000), 0, tag=5)
        return []
    sources = []
    for _ in range(3 * (rank.world_size - 1)):
        received = torch.empty(1000)
        source = dist.recv(received, tag=5)
        assert_same_bits(received, pattern(source, 1000))
        sources.append(source)
    return sorted(sources)


def test_any_source() -> None:
    assert on_processes(any_source, 4, backend="ring")[0] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def source_in_subgroup(rank: Rank) -> None:
    group = dist.new_group([1, 3])
    if rank.rank == 1:
        dist.send(torch.ones(3), 3, group=group)
    elif rank.rank == 3:
        received = torch.zeros(3)
        work = dist.irecv(received, group=group)
        work.wait()
        assert work.source_rank() == 0, "ranks of the group"
        assert_same_bits(received, torch.ones(3))


def test_source_in_a_subgroup() -> None:
    on_processes(source_in_subgroup, 4, backend="ring")


def around_the_ring(rank: Rank, count: int) -> None:
    n = rank.world_size
    following, preceding = (rank.rank + 1) % n, (rank.rank - 1) % n
    received = torch.empty(count)
    backwards = torch.empty(count)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, pattern(rank.rank, count), following),
            dist.P2POp(dist.irecv, backwards, following, tag=1),
            dist.P2POp(dist.irecv, received, preceding),
            dist.P2POp(dist.isend, pattern(rank.rank + 100, count), preceding, tag=1),
        ]
    )
    for work in works:
        work.wait()
    assert_same_bits(received, pattern(preceding, count))
    assert_same_bits(backwards, pattern(following + 100, count))


@pytest.mark.parametrize("count", [3, 500_000])
def test_batch(count: int) -> None:
    on_processes(around_the_ring, 4, count, backend="ring")


def messages_beside_collectives(rank: Rank) -> None:
    peer = 1 - rank.rank
    received = torch.empty(200_000)
    receiving = dist.irecv(received, peer)
    for step in range(20):
        total = torch.full((20_000,), float(step))
        dist.all_reduce(total)
        assert (total == 2 * step).all()
    sending = dist.isend(pattern(rank.rank, 200_000), peer)
    dist.barrier()
    receiving.wait()
    sending.wait()
    assert_same_bits(received, pattern(peer, 200_000))


def test_messages_beside_collectives() -> None:
    on_processes(messages_beside_collectives, 2, backend="ring")


def wrong_message(rank: Rank) -> None:
    if rank.rank == 0:
        dist.send(torch.ones(4), 1)
        dist.send(torch.ones(3), 1)
        dist.send(torch.ones(3), 1, tag=2)
    else:
        received = torch.zeros(3)
        with pytest.raises(
            dist.DistBackendError, match=r"rank 1.*rank 0 sent count=4, dtype=float32"
        ):
            dist.recv(received, 0)
        with pytest.raises(dist.DistBackendError, match=r"rank 0 sent count=3, dtype=float32"):
            dist.recv(received.double(), 0)
        dist.recv(received, 0, tag=2)
        assert_same_bits(received, torch.ones(3), "the next message arrives")


def test_message_of_another_count_or_dtype() -> None:
    on_processes(wrong_message, 2, backend="ring")


def tag_of_another_message(rank: Rank) -> None:
    rank.meet()
    group = dist.new_group(timeout=timedelta(seconds=3))
    if rank.rank == 1:
        sends = [dist.isend(pattern(1, 40_000), 0, group, tag) for tag in (7, 8, 9, 10)]
        for send in sends:
            send.wait(timedelta(seconds=30))
        dist.send(torch.zeros(3, dtype=torch.bool), 0, group, 11)
        rank.meet()
        return
    received = torch.empty(40_000)
    for source, waited_for in ((1, "waiting for rank 1"), (None, "from any rank")):
        with pytest.raises(RuntimeError, match="Timed out") as caught:
            dist.recv(received, source, group, 6)
        text = str(caught.value)
        assert waited_for in text
        assert "not received yet: tag=7 (count=40000, dtype=float32) from rank 1, tag=8" in text
    for tag in (7, 8, 9, 10):
        dist.recv(received, 1, group, tag)
    rank.meet()
    with pytest.raises(RuntimeError, match=r"yet: tag=11 \(count=3, dtype=bool\) from rank 1$"):
        dist.recv(received, 1, group, 6)


def test_time_out_of_a_receive_names_messages_of_other_tags() -> None:
    on_processes(tag_of_another_message, 2, backend="ring")
