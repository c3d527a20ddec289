"""Hosts that do not have the same engines: what they agree on, and what they say if they cannot."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes, outcomes

from ringcomm import _toolchain

pytestmark = pytest.mark.skipif(
    not _toolchain.ucx_libraries(), reason="no UCX: its wheel, libucx-cu13, is not installed"
)


def on_hosts_of_two(rank: Rank, chosen: list[str], has_ucx: list[bool]) -> float:
    os.environ.update(RINGCOMM_HOSTID=f"host{rank.rank // 2}", RINGCOMM_LINKS=chosen[rank.rank])
    if not has_ucx[rank.rank]:
        _toolchain.ucx_libraries = lambda: "/nowhere"  # type: ignore[assignment]
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    tensor = torch.full((100,), float(rank.rank))
    dist.all_reduce(tensor)
    return float(tensor[0])


@pytest.mark.parametrize(
    ("chosen", "has_ucx"),
    [
        (["auto"] * 4, [True, True, False, False]),
        (["auto"] * 4, [False, False, True, True]),
        (["gloo"] * 2 + ["auto"] * 2, [True] * 4),
        (["auto"] * 2 + ["ucx"] * 2, [True] * 4),
    ],
)
def test_hosts_agree(chosen: list[str], has_ucx: list[bool]) -> None:
    assert on_processes(on_hosts_of_two, 4, chosen, has_ucx) == [6.0] * 4


def test_hosts_that_cannot_agree() -> None:
    chosen = ["ucx"] * 2 + ["gloo"] * 2
    for outcome in outcomes(on_hosts_of_two, 4, chosen, [True] * 4):
        assert "rank 0 has ucx, rank 2 has gloo. RINGCOMM_LINKS chooses" in str(outcome.error)


def test_a_host_without_the_engine_that_was_agreed() -> None:
    for outcome in outcomes(on_hosts_of_two, 4, ["ucx"] * 4, [True, True, False, False]):
        assert "UCX is to carry bytes between hosts, but UCX cannot be" in str(outcome.error)


def test_a_rank_that_wants_another_engine_than_its_host() -> None:
    found = outcomes(on_hosts_of_two, 4, ["auto", "gloo", "auto", "auto"], [True] * 4)
    words = "have agreed on ucx between them, and RINGCOMM_LINKS is 'gloo' on this rank"
    assert words in str(found[1].error)
    assert all(outcome.ended == "raised" for outcome in found)
