"""Every collective on several hosts, by `checks.py`; and that it finds mistakes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from values import reduced

from hosts import Local, Network
from hosts.cases import Compared, Findings, Place, difference_of
from hosts.checks import CHECKS
from hosts.conftest import needs_hosts
from hosts.job import Result

SCRIPT = Path(__file__).with_name("checks.py")


def assert_right(results: list[Result]) -> None:
    """No rank has found anything wrong, and groups' ranks have the same bits."""
    digests: dict[str, set[str]] = defaultdict(set)
    for result in results:
        (found,) = result.reports
        assert found["wrong"] == []
        expected = {check.__name__ for check in CHECKS} | {"groups_at_once"}
        assert set(found["cases"]) == expected
        for case, digest in found["digests"].items():
            digests[case].add(digest)
    assert len(digests) > 100
    differing = {
        # Ranks of different hosts have groups of their own, of one name.
        case: found
        for case, found in digests.items()
        if len(found) > 1 and "column" not in case
    }
    assert not differing


@needs_hosts
@pytest.mark.parametrize(
    ("backend", "placement"),
    [("ring", [0, 0, 1, 1]), ("ring", [0, 1, 2]), ("gloo", [0, 1, 2])],  # gloo finds wrong checks
    ids=["ring-2x2", "ring-3x1", "gloo-3x1"],
)
def test_every_collective(backend: str, placement: list[int]) -> None:
    with Network(max(placement) + 1) as network:
        job = network.start(SCRIPT, "--backend", backend, placement=placement)
        assert_right(job.succeed(200))


@pytest.mark.parametrize("algorithm", ["auto", "hierarchical_direct", "hierarchical_doubling"])
def test_16_bit_sums_are_rounded_once_inside_each_host(algorithm: str) -> None:
    with Local(2) as local:
        env = {"RINGCOMM_ALGORITHM": algorithm}
        job = local.start(SCRIPT.with_name("rounding.py"), placement=[0, 1, 0, 0, 1], env=env)
        assert [result.reports for result in job.succeed(60)] == [[0, 0]] * 5


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize(
    ("links", "placement"), [("ucx", [0, 0, 1, 1]), ("gloo", [1, 0, 0])], ids=["ucx", "gloo"]
)
def test_every_collective_and_size(links: str, placement: list[int]) -> None:
    with Network(max(placement) + 1) as network:
        arguments = ("--backend", "ring", "--sizes", "all")
        env = {"RINGCOMM_LINKS": links}
        assert_right(network.start(SCRIPT, *arguments, placement=placement, env=env).succeed(280))


@needs_hosts
@pytest.mark.slow
def test_every_collective_far_away() -> None:
    """With a delay, losses and IPv6."""
    with Network(2, rate="1gbit", delay_ms=2, loss=0.001, ipv6=True) as network:
        job = network.start(SCRIPT, "--backend", "ring", ranks_per_host=2)
        assert_right(job.succeed(280))


def test_the_ring_on_one_host() -> None:
    with Local(1) as local:
        assert_right(local.start(SCRIPT, "--backend", "ring", ranks_per_host=3).succeed(200))


@pytest.mark.parametrize("placement", ["block", "round robin"])
def test_the_ring_on_hosts_by_name(placement: str) -> None:
    with Local(2) as local:
        job = local.start(SCRIPT, "--backend", "ring", ranks_per_host=2, placement=placement)
        assert_right(job.succeed(200))


def test_differences_are_found() -> None:
    right = torch.arange(1000, dtype=torch.float32)
    assert difference_of(right.clone(), right, 0.0) == ""
    wrong = right.clone()
    wrong[700] += 1
    one = difference_of(wrong, right, 0.0)
    assert one == "1 of 1000 elements differ, the first at 700: 701.0, not 700.0"
    assert "int64 [1000], not" in difference_of(right.long(), right, 0.0)
    assert "[999], not" in difference_of(right[1:], right, 0.0)
    assert difference_of(right * (1 + 1e-6), right, 1e-5) == ""
    assert "an error of" in difference_of(wrong, right, 1e-5)
    assert difference_of([1], [2], 0.0) == "[1], not [2]"
    inputs = [torch.full((3,), float(rank)) for rank in range(3)]
    findings = Findings()
    place = Place("the world", None, [0, 1, 2], [], lambda *_: True, None)  # type: ignore[arg-type]
    findings.add("all_reduce", place, Compared("SUM", inputs[1], reduced(inputs, "SUM")))
    assert findings.wrong == [
        "all_reduce in the world: SUM: 3 of 3 elements differ, the first at 0: 1.0, not 3.0"
    ]
