"""Clients run on hosts, too: see `also_on_hosts` in alike.py."""

from __future__ import annotations

import pytest
from played_hosts import RANKS_PER_HOST


@pytest.fixture(autouse=True)
def hosts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `also_on_hosts` gives, or else what the environment says."""
    played = getattr(request, "param", None)
    if played is not None:
        ranks_per_host, links = played
        monkeypatch.setenv(RANKS_PER_HOST, str(ranks_per_host))
        monkeypatch.setenv("RINGCOMM_LINKS", links)
