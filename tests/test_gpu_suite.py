"""The suite for a machine with a GPU: it is rehearsed here to its end, and its parts can fail."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tarfile
import time
from collections import defaultdict
from pathlib import Path

import pytest
from compiled import tools
from gpu_suite import built, groups, rows, run_tests, runner
from gpu_suite.phases import Phase, phases, several_phases

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
MARK = "REHEARSAL"
CALL_SECONDS = 600  # that a part of the suite may take in all


def gpu_suite(
    *arguments: object, script: Path = BENCHMARKS / "gpu_suite.sh", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), *map(str, arguments)],
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHON": sys.executable, **environment},
    )


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def outcomes(results: Path) -> dict[str, tuple[str, str]]:
    return {row["phase"]: (row["outcome"], row["detail"]) for row in table(results / "phases.csv")}


def bash(name: str, seconds: int, script: str, file: str = "", **kind: bool) -> Phase:
    commands = [["bash", "-c", script]]
    return Phase(name, seconds, 1, file or f"{name}.log", commands, **{"needs_build": False} | kind)


# ---- The rehearsal


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_rehearsal_runs_every_phase(tmp_path: Path) -> None:
    tools()
    results, archive = tmp_path / "results", tmp_path / "archive"
    done = gpu_suite("--rehearse", "--archive", archive, results)
    assert done.returncode == 0, done.stdout + done.stderr
    every = phases(results)
    assert outcomes(results) == {phase.name: ("ok", "") for phase in every}
    for phase in every:
        assert (results / phase.file).stat().st_size > 0
        assert (results / f"{phase.name}.log").stat().st_size > 0

    # No file can be taken for a measurement.
    for file in results.iterdir():
        assert file.name == "built.tar.gz" or MARK.encode() in file.read_bytes(), file.name
    for name, columns in (("all_reduce", "gpu"), ("reduce_kernels", "on"), ("streams", "gpu")):
        assert all(MARK in row[columns] for row in table(results / f"{name}.csv")), name
    with pytest.raises(runner.MixedError, match="of another kind: REHEARSAL"):
        runner.Runner(results, None, {})

    # Both ways to share a GPU, and the channels and ranks that the table is to have.
    measured = table(results / "all_reduce.csv")
    assert {row["sharing"] for row in measured} == {"MPS", "time-sliced"}
    assert {(row["world_size"], row["channels"], row["ctas"]) for row in measured} == {
        *(("2", str(channels), "32") for channels in (1, 2, 4)),
        ("4", "1", "16"),
    }
    assert all(row["ring_wrong"] == row["nccl_wrong"] == "0" for row in measured)
    kernels = (results / "reduce.csv").read_text()
    assert "reduce_kernel<3, 0, 2>" in kernels and "reduce_kernel<512" not in kernels  # torch's

    assert sorted(os.listdir(archive)) == ["built.tar.gz", "rehearsal.tar.gz"]
    with tarfile.open(archive / "rehearsal.tar.gz") as tar:
        kept = {Path(name).name for name in tar.getnames()}
    assert kept == set(os.listdir(results)) - {"built.tar.gz"}
    assert all(file.stat().st_size < 16 << 20 for file in archive.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rehearsal_for_several_gpus_runs_every_phase(tmp_path: Path) -> None:
    tools()
    results = tmp_path / "results"
    script = BENCHMARKS / "several_gpus.sh"
    done = gpu_suite("--rehearse", results, script=script)
    assert done.returncode == 0, done.stdout + done.stderr
    every = several_phases(2, results)
    assert outcomes(results) == {phase.name: ("ok", "") for phase in every}
    for file in results.iterdir():
        assert MARK.encode() in file.read_bytes(), file.name
    pairs = {(row["from"], row["to"], row["wrong"]) for row in table(results / "peers.csv")}
    assert pairs == {("0", "1", "0"), ("1", "0", "0")}
    measured = table(results / "all_reduce.csv")
    assert {row["nccl_ctas"] for row in measured} == {"32", "default"}
    assert {row["algorithm"] for row in table(results / "plans.csv")} == {
        *("ring", "direct", "one_shot", "recursive_doubling")
    }


def test_several_gpus_take_about_ten_minutes(tmp_path: Path) -> None:
    """Limits are what may be needed, and 13 minutes together. One GPU is another script's."""
    for gpus in (2, 3, 8):
        assert sum(phase.seconds for phase in several_phases(gpus, tmp_path)) <= 13 * 60
    commands = [command for phase in several_phases(6, tmp_path) for command in phase.commands]
    assert any("4ranks" in command for command in commands)
    assert any(
        command[command.index("--nproc") + 1] == "6" for command in commands if "--nproc" in command
    )
    done = gpu_suite(tmp_path, script=BENCHMARKS / "several_gpus.sh", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "--several needs 2 GPUs or more, and torch finds 0" in done.stderr


@pytest.mark.slow
def test_a_second_call_starts_from_what_was_built(tmp_path: Path) -> None:
    tarball = tmp_path / "built.tar.gz"
    built.pack(tarball)
    results = tmp_path / "results"
    done = gpu_suite("--rehearse", "--built", tarball, "--phase", "kernels", results)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(outcomes(results)) == {"unpack", "kernels"}
    names = {path.name for path in (results / "unpacked" / "ringcomm").iterdir()}
    assert "_build_info.py" in names and any(name.startswith("_C.") for name in names)


def test_unpacking_replaces_files_that_are_in_use(tmp_path: Path) -> None:
    first, second = tmp_path / "first" / "ringcomm", tmp_path / "second" / "ringcomm"
    for package, text in ((first, "new"), (second, "old")):
        package.mkdir(parents=True)
        for name in ("_C.cpython.so", "_build_info.py"):
            (package / name).write_text(text)
    tarball = tmp_path / "built.tar.gz"
    built.pack(tarball, first.parent)
    with (second / "_C.cpython.so").open() as in_use:
        built.unpack(tarball, second.parent)
        assert in_use.read() == "old"
    assert (second / "_C.cpython.so").read_text() == "new"


# ---- Limits


def test_a_part_fits_a_call() -> None:
    """And the watchdog speaks before a test's ranks are ended, and these before the test is."""
    for tarball in (None, Path("built.tar.gz")):
        seconds: defaultdict[int, int] = defaultdict(int)
        for phase in phases(Path("results"), tarball):
            for part in [phase.part] if phase.part else [1, 2, 3]:
                seconds[part] += phase.seconds
        if tarball is None:
            assert seconds[1] < CALL_SECONDS
        else:
            assert seconds[2] < CALL_SECONDS and seconds[3] < CALL_SECONDS
    sys.path.append(str(ROOT / "tests" / "gpu"))
    import gpus

    assert groups.TIMEOUT.total_seconds() < gpus.SECONDS / 2 < gpus.SECONDS < run_tests.SECONDS


def test_a_phase_that_hangs_is_ended_whole(tmp_path: Path) -> None:
    """Its children too, and those that left its group; the other phases run."""
    python = f"{sys.executable} -X faulthandler -c 'import time; time.sleep(1000)'"
    pids = tmp_path / "pids"
    hang = f"{python} & echo $! >>{pids}; setsid {python} & echo $! >>{pids}; sleep 1000"
    began = time.monotonic()
    run = runner.Runner(tmp_path / "results", None, {})
    assert not run.run([bash("hangs", 2, hang), bash("goes-on", 9, "true")])
    assert time.monotonic() - began < 10
    assert outcomes(run.results) == {
        "hangs": ("failed", "ended at its limit of 2 s"),
        "goes-on": ("ok", ""),
    }
    assert len(pids.read_text().split()) == 2
    for pid in pids.read_text().split():
        status = Path(f"/proc/{pid}/status")
        assert not status.exists() or "State:\tZ" in status.read_text()
    log = (run.results / "hangs.log").read_text()
    # Both write at once, piece by piece.
    assert log.count("<string>") == 2, "each Python says where it hung"


def test_what_a_phase_leaves_running_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    run = runner.Runner(tmp_path / "results", None, {})
    assert run.run([bash("leaves", 20, f"sleep 1000 & echo $! >{pid}")])
    status = Path(f"/proc/{pid.read_text().strip()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_a_suite_that_is_ended_keeps_its_results(tmp_path: Path) -> None:
    script = f"echo $$ >{tmp_path}/pid; echo first figures; sleep 1000"
    code = (
        "import pathlib, signal, sys\n"
        "from gpu_suite import __main__, runner\n"
        "from gpu_suite.phases import Phase\n"
        f"results = pathlib.Path({str(tmp_path)!r})\n"
        f"phase = Phase('hangs', 100, 1, 'x', [['bash', '-c', {script!r}]], needs_build=False)\n"
        "__main__.end_on_sigterm()\n"
        "runner.Runner(results / 'results', results / 'archive', {}).run([phase])\n"
    )
    suite = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    )
    pid = tmp_path / "pid"
    while not pid.exists() or not pid.read_text():
        time.sleep(0.05)
    suite.terminate()
    assert suite.wait() == 143
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    with tarfile.open(tmp_path / "archive" / "results.tar.gz") as tar:
        log = tar.extractfile("results/hangs.log")
        assert log is not None and b"first figures" in log.read()


# ---- Failures


def test_a_phase_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner.Runner(tmp_path / "results", tmp_path / "archive", {})
    assert not run.run(
        [
            bash("fails", 9, "echo what is wrong; exit 3"),
            bash("no-file", 9, "true", file="figures.csv"),
            Phase("no-tool", 9, 1, "x", [["no-such-tool"]], needs_build=False),
            bash("works", 9, f"echo 1 >{tmp_path}/results/figures.txt", file="figures.txt"),
        ]
    )
    found = outcomes(run.results)
    assert found["fails"] == ("failed", "exit code 3: what is wrong")
    assert found["no-file"] == ("failed", "wrote no figures.csv")
    assert "no-such-tool" in found["no-tool"][1]
    assert found["works"] == ("ok", "")
    assert "fails            failed" in capsys.readouterr().out
    with tarfile.open(tmp_path / "archive" / "results.tar.gz") as tar:
        assert "results/figures.txt" in tar.getnames()


def test_without_a_build_the_other_phases_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ringcomm.py").write_text("raise ImportError('it was not built for this torch')")
    monkeypatch.chdir(tmp_path)
    run = runner.Runner(tmp_path / "results", None, {})
    assert not run.run([bash("build", 9, "exit 1"), bash("smoke", 9, "true", needs_build=True)])
    problem = "not run, as ringcomm is not built: ImportError: it was not built for this torch"
    assert outcomes(run.results)["smoke"] == ("failed", problem)


def test_an_unknown_phase_is_an_error(tmp_path: Path) -> None:
    done = gpu_suite("--phase", "timming-2", tmp_path)
    assert done.returncode == 2 and "no phase timming-2; there are probe, build" in done.stderr


TESTS = """
import os, time, pytest
def test_passes(): pass
def test_fails(): assert False
def test_hangs(): time.sleep(100)
def test_is_skipped(): pytest.skip("no reason")
def test_kills(): os._exit(1)
def test_comes_last(): pass
"""


@pytest.mark.slow
def test_no_test_harms_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, found = tmp_path / "test_some.py", tmp_path / "some.csv"
    file.write_text(TESTS)
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    monkeypatch.setattr(run_tests, "SECONDS", 2)
    problem = run_tests.run(found, str(file), "--rootdir", str(tmp_path))
    assert {row["test"].split("::test_")[1]: row["outcome"] for row in rows.read(found)} == {
        "passes": "passed",
        "fails": "failed",
        "hangs": "ended pytest",
        "is_skipped": "skipped",
        "kills": "ended pytest",
        "comes_last": "passed",
    }
    assert problem == "2 passed, 1 failed, 2 ended pytest, 1 skipped"
    skipped = run_tests.run(tmp_path / "skip.csv", f"{file}::test_is_skipped")
    assert skipped == "1 skipped", "a skip is not a pass"
