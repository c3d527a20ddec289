"""Bytes and seconds as people read them."""

from __future__ import annotations


def readable_nbytes(nbytes: int) -> str:
    """Such as 64 MiB, 1536 KiB, or, rounded, 37.5 KiB; bytes if they are fewer than 1024."""
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes / 2**20:.1f} MiB" if nbytes > 1 << 20 else f"{nbytes / 2**10:.1f} KiB"


def readable_seconds(seconds: float) -> str:
    """Such as 1.23 ms, to three digits."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "µs")
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"
