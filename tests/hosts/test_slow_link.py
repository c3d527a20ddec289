"""`ringcomm.stragglers` on hosts of which one sends at a tenth of the others' rate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hosts import Network
from hosts.conftest import needs_hosts

SCRIPT = Path(__file__).with_name("slow_link.py")


def found(hosts: int, ranks_per_host: int, engine: str, slow: int | None) -> list[Any]:
    with Network(hosts, rate="1gbit") as network:
        if slow is not None:
            network.limit(slow, "100mbit")
        env = {"RINGCOMM_LINKS": engine}
        job = network.start(SCRIPT, ranks_per_host=ranks_per_host, env=env)
        reports = [result.reports for result in job.succeed(150)]
    assert all(each == reports[0] for each in reports)
    ((entries,),) = reports[:1]
    assert isinstance(entries, list)
    return entries


@needs_hosts
@pytest.mark.parametrize(
    ("hosts", "ranks_per_host", "engine"), [(2, 1, "gloo"), (3, 1, "ucx"), (2, 2, "gloo")]
)
def test_the_link_is_named(hosts: int, ranks_per_host: int, engine: str) -> None:
    entries = found(hosts, ranks_per_host, engine, hosts - 1)
    (slow,) = [each for each in entries if each["cause"] == "link"]
    assert slow["host"] == f"rc-host{hosts - 1}"
    assert slow["rank"] // ranks_per_host == hosts - 1
    assert 0.5 < slow["waited_s"] < slow["elapsed_s"]
    words = re.fullmatch(
        r"rank \d \(host rc-host\d, group 0 \(default_pg\)\) has a slow link to rank \d \(host "
        r"rc-host0\): ([\d.]+) MB/s, where others have ([\d.]+) MB/s; it cost [\d.]+ s of [\d.]+ s",
        slow["text"],
    )
    assert words and float(words[1]) < min(13, float(words[2]))


@needs_hosts
def test_without_a_slow_link_none_is_named() -> None:
    """Perhaps one is where the tests' own programs slow a host; so not in each of three jobs."""
    jobs = (found(2, 1, "gloo", None) for _ in range(3))
    assert any(all(each["cause"] != "link" for each in entries) for entries in jobs)
