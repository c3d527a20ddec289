"""Ranks that share a GPU: CTAs, MPS, a newer NCCL, and a benchmark whose rows outlive it."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from compiled import tools
from gpu_suite import groups, mps, one_gpu, runner
from own_modules import own
from test_gpu_suite import BENCHMARKS, MARK, bash, gpu_suite, table


def test_both_sides_get_the_same_ctas(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nccl:
        def __init__(
            self, store: object, rank: int, world_size: int, options: SimpleNamespace
        ) -> None:
            self.config = options.config

        @staticmethod
        def Options() -> SimpleNamespace:  # noqa: N802 torch's name
            return SimpleNamespace(config=SimpleNamespace())

    monkeypatch.setattr(groups.dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(groups._C, "create_backend", lambda **given: given)
    store = groups.dist.HashStore()
    ctas = one_gpu.ctas(world_size=4)
    ring = groups.ring(store, 0, 4, groups.Settings(ctas, channels=2))
    nccl = groups.nccl(store, 0, 4, ctas)
    assert ring["max_ctas"] == nccl.config.max_ctas == 16
    assert all(n * one_gpu.ctas(n) <= 64 for n in (2, 4, 8))


@pytest.mark.parametrize(("world_size", "queues"), [(2, "32"), (4, "16"), (100, "1")])
def test_ranks_share_the_hardware_queues(
    world_size: int, queues: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_gpu.torch.cuda, "device_count", lambda: 1)
    variables: dict[str, str] = {}
    monkeypatch.setattr(one_gpu, "os", own(os, environ=variables))
    one_gpu.prepare(world_size)
    assert variables["CUDA_DEVICE_MAX_CONNECTIONS"] == queues


@pytest.mark.slow
def test_nccl_max_ctas_is_refused() -> None:
    tools()
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_all_reduce.py"), "--sizes", "1K"],
        text=True,
        capture_output=True,
        env={**os.environ, "RINGCOMM_REHEARSE": "1", "NCCL_MAX_CTAS": "4"},
    )
    assert done.returncode == 2 and "NCCL_MAX_CTAS overrides" in done.stderr


def test_mps_that_cannot_be_had_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with mps.running() as problem:
        assert problem == "nvidia-cuda-mps-control is not on the PATH"
        assert mps.how() == "time-sliced"
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\necho 'Cannot find MPS control daemon process'; exit 1\n")
    control.chmod(0o755)
    monkeypatch.setattr(mps, "_CLIENT", "pass")
    with mps.running() as problem:
        assert "exit status 1" in problem and mps.how() == "time-sliced"
    monkeypatch.setattr(mps, "_CLIENT", "raise SystemExit(5)")
    with mps.running() as problem:
        assert "exit status 5" in problem


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (100, 1)])
def test_mps_is_tried_with_a_context_of_the_driver(
    tmp_path: Path, code: int, exit_code: int
) -> None:
    driver = f"int cuInit(unsigned flags) {{ return {code}; }}\n"
    driver += "int cuDevicePrimaryCtxRetain(void** context, int device) { return device; }\n"
    library = tmp_path / "libcuda.so.1"
    compiling = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiling, input=driver, text=True, check=True)
    client = subprocess.run(
        [sys.executable, "-c", mps._CONTEXT],
        text=True,
        capture_output=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert client.returncode == exit_code
    assert client.stderr == (f"CUDA's driver answers with error {code}\n" if code else "")


def test_phases_that_want_mps_have_it_or_say_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner.Runner(tmp_path / "results", None, {})
    look = "echo pipe=${CUDA_MPS_PIPE_DIRECTORY-none}"
    assert run.run([bash("without", 9, look, mps=True)])
    log = (run.results / "without.log").read_text()
    assert "time-sliced: nvidia-cuda-mps-control is not on the PATH" in log and "pipe=none" in log
    stand_ins = BENCHMARKS / "gpu_suite" / "stand_ins"
    monkeypatch.setenv("PATH", f"{stand_ins}:{os.environ['PATH']}")
    monkeypatch.setattr(mps, "_CLIENT", "pass")
    assert run.run([bash("with", 9, look, mps=True), bash("plain", 9, look)])
    assert "pipe=/" in (run.results / "with.log").read_text()
    assert "pipe=none" in (run.results / "plain.log").read_text()


def test_a_newer_nccl_is_unpacked_and_loaded_for_ranks_only(tmp_path: Path) -> None:
    packed = tmp_path / "libnccl.so.2.xz"
    packed.write_bytes(lzma.compress(b"library"))
    with runner.preloaded(str(packed)) as preload:
        library = Path(preload["LD_PRELOAD"])
        assert library.name == "libnccl.so.2" and library.read_bytes() == b"library"
        run = runner.Runner(tmp_path / "results", None, {"CHOSEN": "newer"})
        look = "echo library=${CHOSEN-none}"
        run.run([bash("ranks", 9, look, ranks=True), bash("build", 9, look)])
    assert not library.exists()
    assert "library=newer" in (run.results / "ranks.log").read_text()
    assert "library=none" in (run.results / "build.log").read_text()
    with runner.preloaded("") as preload:
        assert preload == {}
    done = gpu_suite("--rehearse", "--phase", "probe", tmp_path / "r", RINGCOMM_NCCL="nowhere.so")
    assert done.returncode == 2 and "nowhere.so" in done.stderr


@pytest.mark.slow
def test_rows_outlive_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    tools()
    file = tmp_path / "all_reduce.csv"
    command = [sys.executable, str(BENCHMARKS / "gpu_all_reduce.py"), "--no-mps"]
    options = ["--sizes", ",".join(["1M"] * 500), "--csv", str(file)]
    benchmark = subprocess.Popen(
        [*command, *options],
        env={**os.environ, "RINGCOMM_REHEARSE": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    while benchmark.poll() is None and (not file.exists() or len(table(file)) < 2):
        time.sleep(0.1)
    os.killpg(benchmark.pid, 9)
    assert benchmark.wait() == -9
    measured = table(file)
    assert len(measured) >= 2
    assert all(float(row["nccl_busbw"]) > 0 and MARK in row["gpu"] for row in measured)
