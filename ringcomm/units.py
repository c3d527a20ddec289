"""Bytes, seconds and ranks as people read them."""

from __future__ import annotations

from collections.abc import Sequence


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


def readable_ranks(ranks: Sequence[int]) -> str:
    """Such as rank 3, ranks 0 and 2, or ranks 0 to 3, 6 and 8; in ascending order."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts: list[str] = []
    for run in runs:
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    if len(texts) > 1:
        texts[-2:] = [f"{texts[-2]} and {texts[-1]}"]
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(texts)}"


def capital(text: str) -> str:
    """The text with a capital at its beginning, and else as it is."""
    return text[0].upper() + text[1:]
