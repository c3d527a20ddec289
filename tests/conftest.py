"""What holds for the whole session: its options, and that it leaves no shared memory behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import ahead
import pytest
from hypothesis import settings
from shared_memory import appeared_in_shared_memory, left_in_shared_memory

_before = pytest.StashKey[set[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="tests/faults in its long form, which writes benchmarks/results/faults_*.json; "
        "test_same_bits.py compares all combinations; and hypothesis draws new examples in place "
        "of the same in every run",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("ringcomm", derandomize=not config.getoption("long"))
    settings.load_profile("ringcomm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is built while other tests wait comes after all of them."""
    items.sort(key=lambda item: (ahead.comes_last(item), item.path.name == "test_core_cpp.py"))


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_before] = left_in_shared_memory()
    os.environ["RINGCOMM_TUNING"] = "off"  # what is tested must not depend on the user's cache


@pytest.fixture(scope="session", autouse=True)
def built_ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """What takes the longest to build is built from the first test on."""
    with ahead.begun(request.session):
        yield


@pytest.fixture(autouse=True)
def registered_algorithms_end_with_their_test() -> Iterator[None]:
    """Commands list what is registered, so another test's algorithm would change their output."""
    yield
    registry = sys.modules.get("ringcomm.plan.registry")
    if registry:
        registry._generators.clear()


def pytest_sessionfinish(session: pytest.Session) -> None:
    left = appeared_in_shared_memory(session.config.stash[_before])
    if left:
        names = ", ".join(sorted(map(str, left)))
        session.config.get_terminal_writer().line(f"\nleft behind by the tests: {names}", red=True)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
