"""A store whose process kills itself at a chosen operation, so each point of set-up can be hit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import Store

BEFORE_ITS_TICKET = -1


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStore(Store):
    """As `inner`, until `operations` more of them are done after this rank took its ticket.

    Args:
        operations: 0: right after the ticket; BEFORE_ITS_TICKET: in its place.
        last_words: called right before the death.
    """

    def __init__(
        self,
        inner: Store,
        operations: int,
        last_words: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.left = operations
        self.last_words = last_words
        self.counting = False

    def _die(self) -> None:
        self.last_words()
        kill_oneself()

    def _count(self) -> None:
        if self.counting:
            self.left -= 1
            if self.left == 0:
                self._die()

    def add(self, key: str, amount: int) -> int:
        is_ticket = key.endswith("/tickets")
        if is_ticket and self.left == BEFORE_ITS_TICKET:
            self._die()
        result = self.inner.add(key, amount)
        self.counting = self.counting or is_ticket
        if is_ticket:
            if self.left == 0:
                self._die()
        else:
            self._count()
        return result

    def set(self, key: str, value: Any) -> None:
        self.inner.set(key, value)
        self._count()

    def get(self, key: str) -> bytes:
        value = self.inner.get(key)
        self._count()
        return value

    def check(self, keys: list[str]) -> bool:
        found = self.inner.check(keys)
        self._count()
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if timeout is None:
            self.inner.wait(keys)
        else:
            self.inner.wait(keys, timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        self.inner.set_timeout(timeout)
