"""`python -m ringcomm metrics` and `ringcomm.metrics`: what Prometheus reads of running groups."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import prometheus_client
import pytest
import torch
import torch.distributed as dist
from prometheus_client.parser import text_string_to_metric_families
from ranks import Rank, on_processes

import ringcomm
from ringcomm.cli import main, metrics
from ringcomm.metrics import GroupCollector

Figures = dict[tuple[str, str, str], float]  # by name, group and rank


def figures() -> Figures:
    """What Prometheus reads of this process's groups."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(GroupCollector())
    text = prometheus_client.generate_latest(registry).decode()
    found: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels["group"], sample.labels.get("rank", ""))
            assert key not in found
            found[key] = sample.value
    return found


def own(_: Rank) -> Figures:
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    subgroup = dist.new_group([1, 0], group_desc="tp")
    dist.all_reduce(torch.ones(10), group=subgroup)
    dist.barrier()
    found = figures()
    dist.barrier()  # until then the other rank is there
    return found


def test_figures_of_this_process() -> None:
    for found in on_processes(own, 2, backend="ring"):
        for rank in "01":
            assert found["ringcomm_collectives_total", "tp", rank] == 1
            assert found["ringcomm_collective_bytes_total", "tp", rank] == 40
            assert found["ringcomm_collectives_total", "default_pg", rank] >= 3
            assert found["ringcomm_collective_bytes_total", "default_pg", rank] == 3 * 4000
            assert found["ringcomm_memory_bytes", "default_pg", rank] > 0
            assert found["ringcomm_device_memory_bytes", "default_pg", rank] == 0
            assert found["ringcomm_waiting_seconds", "default_pg", rank] >= 0
        assert found["ringcomm_group_broken", "default_pg", ""] == 0


def groups_of_one_name(_: Rank) -> Figures:
    for count in (1, 2):
        group = dist.new_group([0, 1], group_desc="same")
        for _ in range(count):
            dist.all_reduce(torch.ones(10), group=group)
    dist.barrier()
    found = figures()
    dist.barrier()
    return found


def test_groups_of_one_name() -> None:
    """Prometheus refuses a figure that is there twice."""
    for found in on_processes(groups_of_one_name, 2, backend="ring"):
        assert found["ringcomm_collectives_total", "same", "0"] == 1
        assert found["ringcomm_collectives_total", "same (2)", "0"] == 2


def own_ranks_alone(_: Rank) -> set[str]:
    dist.all_reduce(torch.ones(10))
    found = figures()
    dist.barrier()
    return {rank for _, _, rank in found} - {""}


def test_ranks_of_other_hosts_are_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_TEST_RANKS_PER_HOST", "2")
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    found = on_processes(own_ranks_alone, 3, backend="ring")
    assert found == [{"0", "1"}, {"0", "1"}, {"2"}]


@contextmanager
def a_group_here() -> Iterator[None]:
    ringcomm.init()
    try:
        ringcomm.all_reduce(torch.ones(10))
        yield
    finally:
        ringcomm.destroy_process_group()


def test_once(capsys: pytest.CaptureFixture[str]) -> None:
    with a_group_here():
        assert main(["metrics", "--once"]) == 0
    text = capsys.readouterr().out
    assert "# TYPE ringcomm_collectives_total counter" in text
    assert re.search(r'ringcomm_memory_bytes{.*launcher="\d+".*rank="0"', text)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_the_server() -> None:
    port = free_port()
    command = [sys.executable, "-m", "ringcomm", "metrics", "--port", str(port)]
    with a_group_here(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address == f"http://127.0.0.1:{port}/metrics"
            with urllib.request.urlopen(address, timeout=30) as answer:
                found = answer.read().decode()
            other = subprocess.run(command, capture_output=True, text=True, timeout=60)
        finally:
            server.kill()
    assert "ringcomm_collectives_total" in found and 'rank="0"' in found
    assert other.returncode == 1
    assert f"127.0.0.1:{port} cannot be used" in other.stderr


def test_an_interrupt_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(metrics, "_wait", interrupted)
    assert main(["metrics", "--port", str(free_port())]) == 130


def test_without_the_client(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["metrics", "--once"]) == 1
    assert "pip install prometheus-client" in capsys.readouterr().err
