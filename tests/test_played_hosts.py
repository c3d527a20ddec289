"""That ranks are on the hosts they play, and use the links that are set."""

from __future__ import annotations

import os

import pytest
from played_hosts import RANKS_PER_HOST
from ranks import Rank, on_processes

import ringcomm


def placed(_: Rank) -> tuple[list[tuple[int, ...]], str]:
    hosts = [host.ranks for host in ringcomm.topology().hosts]
    return hosts, os.environ["RINGCOMM_LINKS"]


@pytest.mark.parametrize(
    ("ranks_per_host", "hosts"), [(2, [(0, 1), (2,)]), (1, [(0,), (1,), (2,)]), (3, [(0, 1, 2)])]
)
def test_placement(
    ranks_per_host: int, hosts: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RANKS_PER_HOST, str(ranks_per_host))
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    assert on_processes(placed, 3, backend="ring") == [(hosts, "gloo")] * 3
