"""What every campaign gets, and what it must leave behind: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ahead import is_builder
from shared_memory import appeared_in_shared_memory, left_in_shared_memory

from faults.record import Record

LONG_TIMEOUT = 3600  # seconds


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("long"):
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.timeout(LONG_TIMEOUT))


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    campaign = request.path.stem.removeprefix("test_")
    return Record(campaign, request.config.getoption("long"))


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    memory = left_in_shared_memory()
    processes = running()
    yield
    assert not appeared_in_shared_memory(memory)
    assert running() <= processes


def running() -> set[psutil.Process]:
    """Children, without the fork server, what it has forked before, and what builds programs."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if not is_server(child) and not is_builder(child)}


def is_server(child: psutil.Process) -> bool:
    try:
        line = " ".join(child.cmdline())
        parent = child.parent()
    except psutil.NoSuchProcess:
        return True
    is_helper = "multiprocessing.forkserver" in line or "resource_tracker" in line
    return is_helper and parent is not None and parent.pid == psutil.Process().pid
