"""What carries bytes between hosts: RINGCOMM_LINKS, where UCX is, and RINGCOMM_ACROSS; and how long
a host may be silent."""

from __future__ import annotations

import os

from ringcomm import _C, _toolchain, tuning
from ringcomm.environment import one_of, seconds, shown, value_of
from ringcomm.plan.network import Link

ENGINES = ("auto", "ucx", "gloo")
ETHERNET = "50us:1.25GB/s"
MOST_LATENCY, MOST_BANDWIDTH = 1000.0, 1e15  # seconds, bytes per second
SILENCE, MOST_SILENCE = 4, 86400  # seconds


def wanted() -> str:
    """What RINGCOMM_LINKS says: "auto", which is UCX if there is one, else gloo; "ucx"; "gloo".

    Raises:
        ValueError: it holds something else.
    """
    engine = one_of("RINGCOMM_LINKS", ENGINES)
    _C.links.look_for_ucx_in(os.fsencode(_toolchain.ucx_libraries()))
    return engine


def across() -> Link:
    """The network between hosts that RINGCOMM_ACROSS describes, else that `tune` has measured.

    Without either, 10 Gbit/s Ethernet.

    Raises:
        OSError: RINGCOMM_TUNING names a file that cannot be read.
        ValueError: RINGCOMM_ACROSS holds something else than a link, or that file is no tuning.
    """
    text = value_of("RINGCOMM_ACROSS")
    if not text:
        return Link.parse(tuning.across() or ETHERNET)
    try:
        link = Link.parse(text)
    except ValueError as error:
        raise ValueError(f"RINGCOMM_ACROSS {error}") from None
    if max(link.latency, link.overhead) > MOST_LATENCY or link.bandwidth > MOST_BANDWIDTH:
        raise ValueError(
            f"RINGCOMM_ACROSS is {shown(text)}; latency and overhead must be at most "
            f"{MOST_LATENCY:g} s, and the bandwidth at most {MOST_BANDWIDTH / 1e9:.0f} GB/s"
        )
    return link


def heartbeat_timeout() -> float:
    """The seconds after which a host that sends no heartbeat counts as gone.

    Raises:
        ValueError: RINGCOMM_HOST_SILENCE holds something else.
    """
    return seconds("RINGCOMM_HOST_SILENCE", SILENCE, 1, MOST_SILENCE)


def describe() -> str:
    """The engine that will be used here, and why UCX is not, if it could be.

    Raises:
        ValueError: RINGCOMM_LINKS holds what it must not.
        RuntimeError: it asks for UCX, and there is none.
    """
    return _C.links.describe(wanted())
