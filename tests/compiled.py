"""The functions of the compiled module that only tests and benchmarks call."""

from __future__ import annotations

from typing import Any

import pytest


def tools() -> Any:
    """ringcomm._C.testing; the test that asks for it is skipped if the build left it out."""
    reason = "ringcomm was built without RINGCOMM_WITH_TESTS=1"
    return pytest.importorskip("ringcomm._C.testing", reason=reason)
