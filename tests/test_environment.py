"""Environment variables: an empty one counts as not set."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed import HashStore

from ringcomm import _C, backend, flight, launchers, tuning
from ringcomm.bench import run as bench_rank

PAGE = Path(__file__).resolve().parents[1] / "docs" / "pages" / "reference" / "environment.md"


def documented() -> list[str]:
    """All variables in the first columns of the page's tables."""
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(), re.M)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


class GroupOptions(NamedTuple):
    """What torch passes to a backend that it makes."""

    store: HashStore
    group_rank: int = 0
    group_size: int = 1
    timeout: timedelta = timedelta(seconds=1)
    group_id: str = "group"
    global_ranks_in_group: tuple[int, ...] = ()


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in documented():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What all that reads the environment makes of it."""
    calls: dict[str, Any] = {}
    with monkeypatch.context() as seen:
        for name in ("create_backend", "start_flight_recorder"):
            seen.setattr(_C, name, lambda *arguments, name=name: calls.__setitem__(name, arguments))
        seen.setattr(
            backend, "PrefixStore", lambda prefix, store: calls.__setitem__("prefix", prefix)
        )
        seen.setattr(backend, "link", lambda described: described)  # which can be compared
        seen.setattr(flight, "_tell_torch", lambda is_recorded_here: None)
        seen.setattr(torch.cuda, "device_count", lambda: 2)
        seen.setattr(torch.cuda, "set_device", lambda index: calls.__setitem__("device", index))
        seen.setattr(bench_rank, "device_type", lambda options: "cuda")
        bench_rank._device(None)  # type: ignore[arg-type]
        backend.create(GroupOptions(HashStore()), None)
    world = launchers.rendezvous(None)
    return {
        **calls,
        "tuning": tuning.path(),
        "launched": launchers.launched(),
        "world": (world.get("init_method"), world["rank"], world["world_size"]),
    }


@pytest.mark.parametrize("name", documented())
def test_an_empty_variable_is_as_one_that_is_not_set(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = found(monkeypatch)
    monkeypatch.setenv(name, "")
    assert found(monkeypatch) == without


def test_an_empty_address_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_PORT": "7"}.items():
        monkeypatch.setenv(name, value)
    without = launchers.rendezvous(None)
    assert without["init_method"] == "tcp://127.0.0.1:7"
    monkeypatch.setenv("MASTER_ADDR", "")
    assert launchers.rendezvous(None) == without
