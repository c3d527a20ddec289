"""What is built beside other tests is built once, at the lowest priority, or when it is needed."""

from __future__ import annotations

import ast
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ahead
import psutil
import pytest


def session(*functions: Callable[[], object]) -> Any:
    """One with a test for each function."""
    marks = [pytest.mark.ahead.with_args(function).mark for function in functions]
    items = [SimpleNamespace(iter_markers=lambda name, mark=mark: [mark]) for mark in marks]
    return SimpleNamespace(items=items)


def test_a_function_is_called_once_and_all_get_its_result() -> None:
    calls: list[int] = []
    begun = threading.Event()

    @ahead.once
    def built() -> int:
        begun.set()
        time.sleep(0.1)
        calls.append(threading.get_native_id())
        return len(calls)

    with ahead.begun(session(built, built)):
        begun.wait()
        assert built() == 1
    assert built() == 1
    assert len(calls) == 1 and calls[0] != threading.get_native_id()


def test_it_is_called_at_the_lowest_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    begun = threading.Event()

    @ahead.once
    def priority() -> tuple[int, bool]:
        begun.set()
        with psutil.Popen(["sleep", "100"]) as child:
            child.kill()
            return os.getpriority(os.PRIO_PROCESS, 0), ahead.is_builder(child)

    with ahead.begun(session(priority)):
        begun.wait()  # else this thread may come first
        assert priority() == (19, own < 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    assert not ahead.is_builder(psutil.Process())


def test_what_it_raises_its_test_does() -> None:
    @ahead.once
    def skipped() -> None:
        pytest.skip("no compiler")

    @ahead.once
    def after() -> str:
        return "called"

    with ahead.begun(session(skipped, after)):
        for _ in range(2):
            with pytest.raises(pytest.skip.Exception, match="no compiler"):
                skipped()
        assert after() == "called"


def test_a_test_that_comes_first_does_not_wait_for_what_is_built_before() -> None:
    goes_on = threading.Event()
    late = ahead.once(threading.get_native_id)
    with ahead.begun(session(ahead.once(goes_on.wait), late)):
        assert late() == threading.get_native_id()
        goes_on.set()


def test_what_was_not_begun_by_the_end_is_not() -> None:
    calls: list[str] = []
    begun, ends = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        ends.wait()

    with ahead.begun(session(ahead.once(first), ahead.once(lambda: calls.append("second")))):
        begun.wait()
        threading.Timer(0.2, ends.set).start()
    assert not calls


def test_programs_have_the_variables_of_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST", "1")
    monkeypatch.delenv("PATH")
    assert "OF_A_TEST" not in ahead.environment() and "PATH" in ahead.environment()
    assert ahead.environment(OWN="2")["OWN"] == "2" and "OWN" not in ahead.environment()


def replaced_in(source: str) -> list[str]:
    """What of the standard library the tests of a file replace for all threads."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    targets = [
        ast.unparse(call.args[0])
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "setattr" and call.args
    ]
    library = (sys.stdlib_module_names | {"Path"}) - {"sys"}
    return [
        target
        for target in targets
        if any(name in library for name in target.strip("'\"").split("."))
    ]


def test_what_it_calls_uses_the_standard_library_as_it_is() -> None:
    """See own_modules.py: else a test that lets time.sleep raise meets the build's, not its own."""
    assert replaced_in("patch.setattr(status.time, 'sleep', no)") == ["status.time"]
    assert replaced_in("patch.setattr('os.path.exists', no)") == ["'os.path.exists'"]
    assert replaced_in("patch.setattr(status, 'time', own)") == []
    tests = Path(__file__).parent.rglob("*.py")
    assert {test.name: found for test in tests if (found := replaced_in(test.read_text()))} == {}
