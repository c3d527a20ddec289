"""Checks of messages and barriers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from hosts.cases import COUNTS, Compared, Place, values


def messages(at: Place) -> Iterator[Compared]:
    """send and recv between all pairs, then isend and irecv to all at once, then in batches."""
    if at.size == 1:
        return
    sizes = [*COUNTS[1:], *(nbytes // 4 for nbytes in at.large)]
    for source in range(at.size):
        for target in range(at.size):
            if source == target:
                continue
            for count in sizes:
                expected = values(at.ranks[source], count, torch.float32, target)
                if at.index == source:
                    dist.send(expected, at.ranks[target], group=at.group, tag=count % 100)
                elif at.index == target:
                    tensor = torch.zeros(count)
                    dist.recv(tensor, at.ranks[source], group=at.group, tag=count % 100)
                    case = f"{count} from {at.ranks[source]}"
                    yield Compared(f"send and recv, {case}", tensor, expected)
    for count in sizes:
        others = [i for i in range(at.size) if i != at.index]
        received = {i: torch.zeros(count) for i in others}
        given = {i: values(dist.get_rank(), count, torch.float32, i) for i in others}
        works = [dist.irecv(received[i], at.ranks[i], group=at.group) for i in others]
        works += [dist.isend(given[i], at.ranks[i], group=at.group) for i in reversed(others)]
        for work in works:
            work.wait()
        for i in others:
            expected = values(at.ranks[i], count, torch.float32, at.index)
            yield Compared(f"isend and irecv, {count} from {at.ranks[i]}", received[i], expected)
    for count in sizes:
        ahead, behind = (at.index + 1) % at.size, (at.index - 1) % at.size
        tensor = torch.zeros(count)
        mine = values(dist.get_rank(), count, torch.float32, ahead)
        operations = [
            dist.P2POp(dist.isend, mine, at.ranks[ahead], at.group),
            dist.P2POp(dist.irecv, tensor, at.ranks[behind], at.group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        expected = values(at.ranks[behind], count, torch.float32, at.index)
        yield Compared(f"batch_isend_irecv, {count}", tensor, expected)


def any_source(at: Place) -> Iterator[Compared]:
    """Each rank in turn receives one message of each other, in the order they come."""
    for index, target in enumerate(at.ranks):
        if at.index != index:
            mine = values(dist.get_rank(), 100, torch.float32, index)
            dist.send(mine, target, group=at.group, tag=index)
            continue
        senders = []
        for _ in range(at.size - 1):
            tensor = torch.zeros(100)
            senders.append(dist.recv(tensor, None, group=at.group, tag=index))
            expected = values(senders[-1], 100, torch.float32, index)
            yield Compared(f"a message of {senders[-1]}", tensor, expected)
        yield Compared("senders", sorted(senders), sorted(set(at.ranks) - {target}))


def barrier(at: Place) -> Iterator[Compared]:
    """Nobody leaves before all have come: each writes into the store before, and looks after."""
    store = dist.distributed_c10d._get_default_store()
    for kind in ("barrier", "monitored_barrier"):
        if not at.offers("barrier", kind):
            continue
        for number in range(3):
            key = f"{kind} {at.name} {number}"
            time.sleep(0.05 * ((at.index + number) % at.size))
            store.set(f"{key} {at.index}", "came")
            store.get(f"{key} {at.index}")  # a TCPStore's set does not wait to be carried out
            getattr(dist, kind)(group=at.group)
            came = store.check([f"{key} {index}" for index in range(at.size)])
            yield Compared(f"{kind} {number}", came, True)
