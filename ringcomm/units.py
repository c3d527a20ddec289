"""Bytes and seconds as people read them."""

from __future__ import annotations


def readable_nbytes(nbytes: int) -> str:
    """Such as 64 MiB, or 12345 B if it is no whole number of KiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


def readable_seconds(seconds: float) -> str:
    """Such as 1.23 ms, to three digits."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "µs")
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"
