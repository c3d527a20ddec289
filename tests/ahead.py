"""What takes long to build is built from a session's first test on, beside tests that wait.

    @ahead.once
    def compiled() -> str: ...

    @pytest.mark.ahead(compiled)
    def test_compiles() -> None:
        assert "warning" not in compiled()

Tests with this mark come after all others. Until then a thread calls their functions one by one at
the lowest priority. A test whose function was not called yet calls it itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

import pytest

if TYPE_CHECKING:
    import psutil  # which tests on GPUs do without

T = TypeVar("T")

_AT_THE_BEGINNING = dict(os.environ)


def environment(**changes: str) -> dict[str, str]:
    """The session's variables as it began, for programs that are started ahead.

    Tests set variables for all threads. Without its own, a program that begins meanwhile would have
    those of a test, or fail with EFAULT, as it reads a table that another thread is changing.
    """
    return {**_AT_THE_BEGINNING, **changes}


class once(Generic[T]):  # noqa: N801  (a decorator)
    """A function that is called once, by the thread that comes first. The others wait for it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._begun = threading.Lock()
        self._result: Future[T] = Future()

    def __call__(self) -> T:
        if self._begun.acquire(blocking=False):
            try:
                self._result.set_result(self._function())
            except BaseException as error:  # pytest.skip's is no Exception
                self._result.set_exception(error)
        return self._result.result()


def comes_last(item: pytest.Item) -> bool:
    return item.get_closest_marker("ahead") is not None


@contextlib.contextmanager
def begun(session: pytest.Session) -> Iterator[None]:
    """Calls the functions of the session's marks. What they raise, their tests do."""

    def be_nice() -> None:  # the thread and its children alone
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

    def call(function: Callable[[], object]) -> None:
        function()
        time.sleep(0.1)  # in which tests that wait for the same lock come first

    functions = {
        function: None
        for item in session.items
        for mark in item.iter_markers("ahead")
        for function in mark.args
    }
    with ThreadPoolExecutor(1, initializer=be_nice) as builder:
        for function in functions:
            builder.submit(call, function)
        yield
        builder.shutdown(cancel_futures=True)


def is_builder(process: psutil.Process) -> bool:
    """Whether it was started ahead: nothing else is nicer than the tests themselves."""
    try:
        nice = os.getpriority(os.PRIO_PROCESS, process.pid)
        return nice > os.getpriority(os.PRIO_PROCESS, os.getpid())
    except ProcessLookupError:
        return False
