"""ringcomm.ProcessGroupRing: a ring that is made as torch's ProcessGroupGloo is."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch.distributed import PrefixStore

import ringcomm

TIMEOUT = timedelta(seconds=30)


def two_rings(rank: Rank) -> None:
    made = [ringcomm.ProcessGroupRing, dist.ProcessGroupGloo]
    rings = [
        make(PrefixStore(str(number), rank.store), rank.rank, rank.world_size, TIMEOUT)
        for number, make in enumerate([*made, ringcomm.ProcessGroupRing])
    ]
    for ring in rings:
        assert (ring.rank(), ring.size()) == (rank.rank, rank.world_size)
        tensor = torch.arange(5.0) + rank.rank
        ring.allreduce([tensor]).wait()
        assert tensor.tolist() == [1, 3, 5, 7, 9]
    assert not dist.is_initialized()


def test_beside_gloo() -> None:
    on_processes(two_rings, 2)


def alone(rank: Rank) -> None:
    options = ringcomm.Options(algorithm="ring")
    ring = ringcomm.ProcessGroupRing(rank.store, 0, 1, options=options)
    tensor = torch.ones(2)
    ring.broadcast([tensor]).wait()
    assert tensor.tolist() == [1, 1]
    with pytest.raises(ValueError, match="got rank 2 of size 2"):
        ringcomm.ProcessGroupRing(rank.store, 2, 2, TIMEOUT)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 did not come"):
        short = timedelta(milliseconds=200)
        ringcomm.ProcessGroupRing(PrefixStore("nobody", rank.store), 0, 2, short)
    with pytest.raises(ValueError, match="algorithm is 'tree'"):
        wrong = ringcomm.Options(algorithm="tree")
        ringcomm.ProcessGroupRing(PrefixStore("tree", rank.store), 0, 1, TIMEOUT, options=wrong)


def test_what_is_refused() -> None:
    on_processes(alone, 1)
