"""Estimates of the time that collectives take, which are not carried out meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from programs import ROOT, python
from ranks import Rank, on_processes
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore

import ringcomm
from ringcomm import tuning
from ringcomm.cli import names
from ringcomm.tuning import Time, Tuning

pytestmark = pytest.mark.skipif(
    not hasattr(c10d.Backend, "_start_time_estimate"), reason="torch 2.15 and newer ask for them"
)
CPU = torch.device("cpu")
COLLECTIVES = tuple(name for name in names.COLLECTIVES if name != "barrier")
# Microseconds of calls among 2 ranks, by bytes, of the first collective; of the next ones 1000,
# 2000, ... more.
TIMES = {1000: 10.0, 2000: 30.0, 4000: 40.0}
OF_BARRIERS = 5.0


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A tuning."""
    times = [
        Time(2, name, nbytes, (1000 * index + microseconds) * 1e-6)
        for index, name in enumerate(COLLECTIVES)
        for nbytes, microseconds in TIMES.items()
    ]
    times.append(Time(2, "barrier", 0, OF_BARRIERS * 1e-6))
    path = tmp_path / "tuning.json"
    tuning.write(path, Tuning("", {}, (), times=tuple(times)))
    return str(path)


def in_group(rank: Rank, file: str, function: Callable[..., Any], *arguments: Any) -> Any:
    os.environ["RINGCOMM_TUNING"] = file
    dist.init_process_group(
        "ring",
        store=PrefixStore("default", rank.store),
        rank=rank.rank,
        world_size=rank.world_size,
    )
    return function(rank, *arguments)


def on_ranks(file: str, function: Callable[..., Any], world_size: int, *arguments: Any) -> Any:
    """As `on_processes` in a group that is made by the tuning."""
    return on_processes(in_group, world_size, file, function, *arguments)


def ring() -> Any:
    return dist.group.WORLD._get_backend(CPU)


def estimate(*calls: Callable[[], object]) -> float:
    """What the backend says of all of them, in microseconds."""
    with dist._time_estimator() as estimator:
        for call in calls:
            call()
    assert estimator.estimated_time is not None
    return float(estimator.estimated_time)


def of(nbytes: int) -> torch.Tensor:
    return torch.ones(nbytes // 4)


def sizes_between(rank: Rank) -> list[float]:
    return [estimate(lambda n=n: dist.all_reduce(of(n))) for n in (0, 400, 1000, 1500, 3000, 8000)]


def test_between_two_sizes_the_time_is_a_line(file: str) -> None:
    found, other = on_ranks(file, sizes_between, 2)
    assert found == other == pytest.approx([10, 10, 10, 20, 35, 80])


def calls(rank: Rank) -> dict[str, tuple[float, Callable[[], object]]]:
    """With what each takes."""
    whole, half = of(2000), of(1000)
    halves = list(of(2000).chunk(2))
    is_root = rank.rank == 1
    group: Any = dist.group.WORLD
    everything = {
        "all_reduce": (30, lambda: dist.all_reduce(whole)),
        "bfloat16": (10, lambda: dist.all_reduce(half.bfloat16().repeat(2))),
        "every second": (10, lambda: dist.all_reduce(whole[::2])),
        "asynchronous": (30, lambda: dist.all_reduce(whole, async_op=True).wait()),
        "direct": (30, lambda: ringcomm.all_reduce(whole)),
        "coalesced": (40, lambda: dist.all_reduce_coalesced([whole, half])),
        "reduce_scatter": (1030, lambda: dist.reduce_scatter(half, halves)),
        "reduce_scatter_tensor": (1030, lambda: ringcomm.reduce_scatter_tensor(half, whole)),
        "reduce": (2030, lambda: dist.reduce(whole, 1)),
        "all_gather": (3030, lambda: dist.all_gather(halves, half)),
        "all_gather_into_tensor": (3030, lambda: ringcomm.all_gather_into_tensor(whole, half)),
        "gather": (4030, lambda: dist.gather(half, halves if is_root else None, dst=1)),
        "scatter": (5030, lambda: dist.scatter(half, halves if is_root else None, src=1)),
        "broadcast": (6030, lambda: dist.broadcast(whole, 1)),
        "all_to_all": (7030, lambda: dist.all_to_all(list(of(2000).chunk(2)), halves)),
        "all_to_all_single": (7030, lambda: dist.all_to_all_single(whole, of(2000))),
        "barrier": (5, lambda: dist.barrier()),
        "direct barrier": (5, lambda: ringcomm.barrier()),
        "functional": (
            30,
            lambda: torch.ops._c10d_functional.wait_tensor(
                torch.ops._c10d_functional.all_reduce(whole, "sum", group.group_name)
            ),
        ),
    }
    return {name: (float(time), call) for name, (time, call) in everything.items()}


def takes(rank: Rank, name: str) -> None:
    time, call = calls(rank)[name]
    assert estimate(call) == pytest.approx(time)
    assert estimate(call, call) == pytest.approx(2 * time)


NAMES = [
    "all_reduce", "bfloat16", "every second", "asynchronous", "direct", "coalesced",
    "reduce_scatter", "reduce_scatter_tensor", "reduce", "all_gather", "all_gather_into_tensor",
    "gather", "scatter", "broadcast", "all_to_all", "all_to_all_single", "barrier",
    "direct barrier", "functional",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_collective_is_estimated(file: str, name: str) -> None:
    on_ranks(file, takes, 2, name)


def alone(rank: Rank) -> None:
    """Rank 1 estimates, and rank 0 calls nothing meanwhile."""
    assert set(calls(rank)) == set(NAMES)
    completed: list[int] = []
    backend = ring()
    backend._register_on_completion_hook(lambda info: completed.append(info.seq))
    before = backend._get_sequence_number_for_group()
    if rank.rank == 1:
        own, gathered = torch.full((250,), 2.0), torch.zeros(500)
        for _, call in calls(rank).values():
            estimate(call)
        estimate(
            lambda: dist.all_reduce(own),
            lambda: dist.all_gather_into_tensor(gathered, own),
            lambda: dist.all_to_all_single(gathered, torch.ones(500)),
            lambda: dist.broadcast(own, 0),
        )
        assert own.eq(2).all() and gathered.eq(0).all()
    assert backend._get_sequence_number_for_group() == before
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3
    backend._wait_for_pending_works()
    assert completed == [before + 1]


def test_an_estimate_has_no_effect(file: str) -> None:
    on_ranks(file, alone, 2)


def works(rank: Rank) -> None:
    tensor = of(2000)
    found = []
    estimate(lambda: found.append(dist.all_reduce(tensor, async_op=True)))
    (work,) = found
    assert work.wait() and work.is_completed() and work.is_success()
    assert work.result()[0].data_ptr() == tensor.data_ptr()
    assert work.get_future().value()[0].data_ptr() == tensor.data_ptr()


def test_works_of_an_estimate_are_complete(file: str) -> None:
    on_ranks(file, works, 2)


def is_refused(rank: Rank, name: str) -> None:
    """By rank 0 alone: rank 1 takes no part."""
    peer = 1 - rank.rank
    sparse = torch.ones(3).to_sparse()
    call, error, said = {
        "send": (lambda: dist.send(of(8), peer), NotImplementedError, "send: no such call"),
        "irecv": (lambda: dist.irecv(of(8), peer), NotImplementedError, "recv: no such call"),
        "direct send": (lambda: ringcomm.send(of(8), peer), NotImplementedError, "send: no"),
        "sparse": (lambda: dist.all_reduce(sparse), NotImplementedError, "no such call"),
        "monitored_barrier": (
            lambda: ring().monitored_barrier(),
            NotImplementedError,
            "monitoredBarrier: no such call",
        ),
        "wrong": (lambda: ringcomm.all_gather(of(4), of(8)), Exception, ""),
        "count": (
            lambda: dist.all_gather_into_tensor(of(4), of(8)),
            ValueError,
            "output tensor",
        ),
    }[name]
    if rank.rank == 0:
        with pytest.raises(error, match=said):
            estimate(call)
        with pytest.raises(RuntimeError, match="no time estimate of this group is under way"):
            ring()._end_time_estimate()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "name", ["send", "irecv", "direct send", "sparse", "monitored_barrier", "wrong", "count"]
)
def test_what_cannot_be_estimated_ends_the_estimate(file: str, name: str) -> None:
    on_ranks(file, is_refused, 2, name)


def begins_and_ends_wrong(rank: Rank) -> None:
    backend = ring()
    with pytest.raises(RuntimeError, match="endTimeEstimate: no time estimate of this group is"):
        backend._end_time_estimate()
    backend._start_time_estimate()
    with pytest.raises(RuntimeError, match="this group's time estimate has started already"):
        backend._start_time_estimate()
    dist.all_reduce(of(1000))
    assert backend._end_time_estimate() == pytest.approx(10)
    backend._start_coalescing()
    with pytest.raises(RuntimeError, match="between startCoalescing and endCoalescing"):
        backend._start_time_estimate()
    backend._end_coalescing().wait()
    backend._start_time_estimate()
    backend._start_coalescing()
    dist.all_reduce(of(1000))
    backend._end_coalescing().wait()
    assert backend._end_time_estimate() == pytest.approx(10)


def test_an_estimate_begins_and_ends_once(file: str) -> None:
    on_ranks(file, begins_and_ends_wrong, 2)


def cannot_start(rank: Rank, said: str, algorithm: str | None) -> None:
    group: Any = ringcomm.new_group(algorithm=algorithm)
    backend = group._get_backend(CPU)
    assert not backend._supports_time_estimate
    with pytest.raises(NotImplementedError, match=said):
        backend._start_time_estimate()


def test_other_numbers_of_ranks_were_not_measured(file: str) -> None:
    said = r"no measured times of groups of 3 ranks.*tune --world-sizes 3"
    on_ranks(file, cannot_start, 3, said, None)


def test_groups_with_a_set_algorithm_have_no_times(file: str) -> None:
    on_ranks(file, cannot_start, 2, "has been told its algorithm", "ring")


def test_groups_of_several_hosts_have_no_times(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_TEST_RANKS_PER_HOST", "1")
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    on_ranks(file, cannot_start, 2, "on several hosts", None)


def starts(rank: Rank) -> bool:
    return bool(ring()._supports_time_estimate)


def test_groups_with_times_say_so(file: str) -> None:
    has_gpu = torch.cuda.is_available()  # whose tensors torch's compiler would ask for
    assert on_ranks(file, starts, 2) == [not has_gpu] * 2


def test_the_benchmark_compares_with_what_is_measured(file: str, tmp_path: Path) -> None:
    output = tmp_path / "estimates"
    few = ("--samples", "1", "--turns", "1", "-o", str(output))
    result = python(
        "benchmarks/time_estimate.py", *few, cwd=ROOT, timeout=100, RINGCOMM_TUNING=file
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "of 48 within 20 %" in result.stdout
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert len(rows) == 48
    for row in rows:
        assert row["ratio"] == pytest.approx(row["estimated_us"] / row["measured_us"])
        if (row["collective"], row["nbytes"]) == ("all_reduce", 1280):
            assert row["estimated_us"] == pytest.approx(10 + 0.28 * 20)
