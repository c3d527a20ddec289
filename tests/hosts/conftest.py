"""What needs hosts of one's own is skipped where there can be none."""

from __future__ import annotations

import pytest

from hosts.network import missing

needs_hosts = pytest.mark.skipif(missing() is not None, reason=str(missing()))
