"""`python -m ringcomm metrics` and `ringcomm.metrics`: what Prometheus reads of running groups."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import torch
import torch.distributed as dist
from documents import FOLDER
from own_modules import own_importlib
from programs import ROOT
from prometheus_client.parser import text_string_to_metric_families
from ranks import Rank, on_processes

import ringcomm
from ringcomm.cli import main, metrics
from ringcomm.metrics import GroupCollector

STEPS = """
import time
import torch
import ringcomm
ringcomm.init()
large = torch.ones(1 << 20)
while True:
    time.sleep(0.1 * ringcomm.get_rank())
    ringcomm.all_reduce(large)
"""
CONFIGURATION = """
scrape_configs:
  - job_name: ringcomm
    scrape_interval: 1s
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""

Figures = dict[tuple[str, str, str], float]  # by name, group and rank; not of histograms


def figures() -> Figures:
    """What Prometheus reads of this process's groups."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(GroupCollector())
    text = prometheus_client.generate_latest(registry).decode()
    found: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.type != "histogram" else ():
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


Times = dict[tuple[str, ...], float]  # by figure, rank, collective, and of buckets their bound


def times(rank: Rank) -> Times:
    dist.all_reduce(torch.ones(1))
    for _ in range(10):
        time.sleep(0.05 if rank.rank else 0.0)
        dist.all_reduce(torch.ones(10))
    for _ in range(5):
        dist.broadcast(torch.ones(1 << 20), 0)
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(10 + rank.rank))
    names = ("rank", "collective", "le")
    histograms = [each for each in GroupCollector().collect() if each.type == "histogram"]
    found = {
        (sample.name, *(sample.labels[name] for name in names if name in sample.labels)): sample
        for family in histograms
        for sample in family.samples
    }
    assert len(found) == sum(len(family.samples) for family in histograms)
    dist.barrier()
    return {key: sample.value for key, sample in found.items()}


def buckets(found: Times, *key: str) -> list[float]:
    return [value for name, value in found.items() if name[:-1] == key]


def test_times_of_collectives() -> None:
    wait, transfer = (f"ringcomm_collective_{what}_seconds" for what in ("wait", "transfer"))
    for found in on_processes(times, 2, backend="ring"):
        for rank in "01":
            for collective, calls in (("all_reduce", 11), ("broadcast", 5)):
                waits = buckets(found, f"{wait}_bucket", rank, collective)
                assert waits == sorted(waits) and len(waits) == 14
                assert waits[-1] == calls, "what failed is not counted"
            assert found[f"{transfer}_count", rank, "all_reduce"] == 0, "they are small"
            assert found[f"{transfer}_count", rank, "broadcast"] == 5
            assert 5 * 50e-6 < found[f"{transfer}_sum", rank, "broadcast"] < 20
        assert found[f"{wait}_bucket", "0", "all_reduce", "0.001024"] < 11, "one waits for rank 1"
        assert 10 * 0.0015 < found[f"{wait}_sum", "0", "all_reduce"] < 20
        bounds = {name[-1] for name in found if name[0] == f"{wait}_bucket"}
        assert bounds >= {"1e-06", "4e-06", "16.777216", "+Inf"}


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
    monkeypatch.setattr(metrics, "importlib", own_importlib(lambda name: None))
    assert main(["metrics", "--once"]) == 1
    assert "pip install prometheus-client" in capsys.readouterr().err


DASHBOARD = json.loads((FOLDER / "assets" / "grafana.json").read_text())


def queries() -> list[str]:
    """Those of the dashboard's panels, for all jobs and groups, over five seconds."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for name, value in (("$job", ".*"), ("$group", ".*"), ("$__rate_interval", "5s")):
        found = [query.replace(name, value) for query in found]
    assert not [query for query in found if "$" in query]
    return found


def test_the_dashboard_shows_what_there_is() -> None:
    known = {family.name for family in GroupCollector(list).collect()}
    known = {f"{name}{ending}" for name in known for ending in ("", "_total", "_sum", "_bucket")}
    named = {name for query in queries() for name in re.findall(r"ringcomm_\w+", query)}
    assert named <= known, named - known


def asked(port: int, query: str) -> list[Any]:
    parameters = urllib.parse.urlencode({"query": query})
    address = f"http://127.0.0.1:{port}/api/v1/query?{parameters}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        result: list[Any] = json.load(answer)["data"]["result"]
        return result


@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs the program prometheus")
def test_prometheus_answers_the_dashboard(tmp_path: Path) -> None:
    """Its server reads the figures of a job of two ranks, of which one sleeps in each step."""
    (tmp_path / "job.py").write_text(STEPS)
    served, port = free_port(), free_port()
    configuration = CONFIGURATION.format(port=served)
    (tmp_path / "prometheus.yml").write_text(configuration)
    commands = [
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "job.py"],
        [sys.executable, "-m", "ringcomm", "metrics", "--port", str(served)],
        [
            *("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"),
            f"--web.listen-address=127.0.0.1:{port}",
        ],
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            output = stack.enter_context((tmp_path / f"output{number}").open("w"))
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        missing = queries()
        until = time.monotonic() + 100
        while missing and time.monotonic() < until:
            time.sleep(0.5)
            with suppress(urllib.error.URLError):  # it has only just been started
                missing = [query for query in missing if not asked(port, query)]
        outputs = [path.read_text()[-2000:] for path in sorted(tmp_path.glob("output*"))]
        assert not missing, outputs
        waits = "rate(ringcomm_collective_wait_seconds_sum{collective='all_reduce'}[5s])"
        share = {each["metric"]["rank"]: float(each["value"][1]) for each in asked(port, waits)}
        assert share["0"] > share["1"]
