"""The doctor: what it finds where all is well, and in each kind of broken place."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from own_modules import own

import ringcomm
from ringcomm import host
from ringcomm.cli import doctor

PACKAGE = Path(doctor.__file__).resolve().parents[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, to break."""
    copied = tmp_path / "ringcomm"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    return copied


def python(package: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        text=True,
        capture_output=True,
        timeout=200,
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": str(package.parent), **environment},
    )


def test_all_is_well() -> None:
    result = python(PACKAGE, "-m", "ringcomm", "doctor")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Nothing is wrong." in result.stdout
    assert re.search(rf"^torch +{re.escape(torch.__version__)}", result.stdout, re.M)
    assert re.search(
        r"^hosts +linked by (ucx 1\.\d+|gloo, as there is no UCX: .*)$", result.stdout, re.M
    )
    assert re.search(r"^self-check +two ranks, right sums$", result.stdout, re.M)
    assert re.search(rf"^host +{re.escape(os.uname().nodename)}, one with", result.stdout, re.M)
    if torch.version.cuda is not None:
        major, minor, patch = torch.cuda.nccl.version()
        assert re.search(rf"^NCCL +{major}\.{minor}\.{patch}", result.stdout, re.M)


def run_here(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """The doctor in this process, without its self-check, which takes seconds."""
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(options)), capsys.readouterr().out


def test_for_machines(capsys, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_self_check", lambda problems: "two ranks, right sums")
    code, printed = run_here(capsys, "--json")
    found = json.loads(printed)
    assert (code, found["problems"]) == (0, [])
    assert found["checks"]["torch"].startswith(torch.__version__)
    assert found["checks"]["ringcomm"].startswith(f"{ringcomm.__version__}, {PACKAGE}")

    monkeypatch.setattr(doctor, "_self_check", lambda problems: problems.append("it hangs") or "")
    code, printed = run_here(capsys, "--json")
    assert (code, json.loads(printed)["problems"]) == (1, ["it hangs"])


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("", "auto: every collective goes as messages. Between GPUs with NVLink it would take"),
        ("messages", "messages: every collective"),
        ("fused", "fused: a collective is one kernel"),
    ],
)
def test_it_says_what_collectives_on_gpus_go_by(name, begins, monkeypatch) -> None:
    monkeypatch.setenv("RINGCOMM_EXECUTOR", name)
    problems: list[str] = []
    assert doctor._executor(problems).startswith(begins)
    assert not problems
    monkeypatch.setenv("RINGCOMM_EXECUTOR", "quick")
    assert doctor._executor(problems) == "not known"
    assert "must be auto, messages or fused" in problems[0]


def test_lines_fold_in_a_terminal_and_paths_stay_whole(capsys, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_self_check", lambda problems: problems.append("it " * 60) or "no")
    monkeypatch.setattr(doctor, "_nvcc", lambda problems: f"13.0, /{'x' * 80}")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("RINGCOMM_EXECUTOR", raising=False)
    in_a_pipe = run_here(capsys)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    folded = run_here(capsys)[1]
    assert folded.split() == in_a_pipe.split()
    sentence = folded[folded.index("executor") : folded.index("hosts  ")].splitlines()
    assert len(sentence) > 2 and all(line.startswith(" " * 12) for line in sentence[1:])
    wide = [line for line in folded.splitlines() if len(line) > 60]
    assert all(len(line.split()) == 1 for line in wide)
    assert max(map(len, in_a_pipe.splitlines())) > 180


def test_for_an_issue(capsys, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_self_check", lambda problems: "two ranks, right sums")
    monkeypatch.setattr(doctor, "platform", own(platform, node=lambda: "secret7"))
    monkeypatch.setattr(doctor.host, "guess", lambda: "secret7, one with others")
    monkeypatch.setenv("HOME", str(PACKAGE.parent))
    monkeypatch.setenv("RINGCOMM_ALGORITHM", "ring")
    monkeypatch.setenv("RINGCOMM_HOSTID", "rack-secret7-x")
    monkeypatch.setenv("AWS_SECRET", "of nobody's business")
    code, printed = run_here(capsys, "--report")
    assert code == 0
    assert printed.startswith("```\nringcomm ") and printed.endswith("\n```\n")
    assert "\nRINGCOMM_ALGORITHM=ring\nRINGCOMM_HOSTID=rack-HOST-x\n" in printed
    assert "Nothing is wrong." in printed and ", ~/ringcomm\n" in printed
    for private in ("secret7", "business", str(PACKAGE.parent)):
        assert private not in printed


def test_settings_that_are_no_text() -> None:
    setting = {"NCCL_DEBUG_FILE": os.fsdecode(b"/tmp/caf\xe9")}
    result = python(PACKAGE, "-m", "ringcomm", "doctor", "--report", **setting)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\nNCCL_DEBUG_FILE=/tmp/caf\\udce9\n" in result.stdout


def test_files_whose_names_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9")
    file.write_bytes(b"x")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 1, access=mmap.ACCESS_READ):
        assert doctor._path_of(file.name) == str(file)


def test_extension_missing(copy: Path) -> None:
    for module in copy.glob("_C*.so"):
        module.unlink()
    result = python(copy, "-m", "ringcomm", "doctor")
    assert result.returncode == 1
    assert "Problem: ringcomm's extension module was not built" in result.stdout
    assert "Traceback" not in result.stderr
    imported = python(copy, "-c", "import ringcomm", "-m", "ringcomm")
    assert imported.returncode == 1 and "ImportError: ringcomm's extension" in imported.stderr
    for other in ("demo", "cost"):
        refused = python(copy, "-m", "ringcomm", other)
        assert refused.returncode == 1 and "was not built" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_extension_for_another_torch(copy: Path) -> None:
    info = copy / "_build_info.py"
    info.write_text(re.sub(r"(TORCH_VERSION.*= ).*", r"\1'2.11.0'", info.read_text()))
    result = python(copy, "-m", "ringcomm", "doctor")
    assert result.returncode == 1
    assert "Problem: ringcomm was built for torch 2.11.0" in result.stdout
    assert torch.__version__ in result.stdout and "pip install" in result.stdout


def test_extension_that_cannot_be_loaded(copy: Path) -> None:
    for module in copy.glob("_C*.so"):
        module.write_bytes(b"not a library")
    result = python(copy, "-m", "ringcomm", "doctor")
    assert result.returncode == 1
    assert re.search(r"^Problem: .*_C.*\.so", result.stdout, re.M)


def test_torch_missing(copy: Path) -> None:
    (copy.parent / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    result = python(copy, "-m", "ringcomm", "doctor")
    assert result.returncode == 1
    assert "Problem: torch cannot be imported" in result.stdout, result.stderr


def test_self_check_fails() -> None:
    result = python(PACKAGE, "-m", "ringcomm", "doctor", RINGCOMM_ALGORITHM="fastest")
    assert result.returncode == 1
    assert "Problem: the self-check of two ranks failed: rank" in result.stdout
    assert "RINGCOMM_ALGORITHM is 'fastest'" in result.stdout


def test_links(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str] = []
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    assert doctor._links(problems) == "linked by gloo" and problems == []
    monkeypatch.setenv("RINGCOMM_LINKS", "pigeons")
    assert doctor._links(problems) == "not linked"
    assert len(problems) == 1 and "RINGCOMM_LINKS is 'pigeons'" in problems[0]
    monkeypatch.setenv("RINGCOMM_LINKS", "gloo")
    for name, text in (("RINGCOMM_ACROSS", "far"), ("RINGCOMM_HOST_SILENCE", "0")):
        with monkeypatch.context() as wrong:
            wrong.setenv(name, text)
            problems.clear()
            assert doctor._links(problems) == "not linked"
            assert len(problems) == 1 and name in problems[0] and f"'{text}'" in problems[0]


def test_shared_memory_without_a_name() -> None:
    problems: list[str] = []
    assert doctor._shared_memory(problems).startswith(
        "ok; needed only between containers: /dev/shm "
    )
    assert problems == []


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = list(os.statvfs("/"))
    values[:5] = [4096, 4096, 4096, 2048, 2048]
    small = own(os, statvfs=lambda path: os.statvfs_result(values))
    monkeypatch.setattr(doctor, "os", small)
    monkeypatch.setattr(doctor, "_has_memfds", lambda: False)
    problems: list[str] = []
    assert doctor._shared_memory(problems) == "/dev/shm 16 MiB, 8 MiB free"
    assert len(problems) == 1 and "8 MiB free" in problems[0] and "--shm-size" in problems[0]


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str) -> int:
        raise OSError("not here")

    monkeypatch.setattr(doctor, "SHARED_MEMORY", str(tmp_path / "none"))
    monkeypatch.setattr(doctor, "os", own(os, memfd_create=refuse))
    problems: list[str] = []
    assert doctor._shared_memory(problems).startswith("no ")
    assert len(problems) == 1 and "no shared memory" in problems[0]


def test_what_a_rank_publishes_about_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_HOSTID", "node 1")
    problems: list[str] = []
    assert doctor._host(problems).startswith("'node 1', by RINGCOMM_HOSTID")
    assert not problems
    monkeypatch.setenv("RINGCOMM_HOSTID", "x" * 64)
    doctor._host(problems)
    assert problems[0].startswith("RINGCOMM_HOSTID is 'xxx")


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, None),
        ("0::/job\n", {"job/cpu.max": "150000 100000\n"}, "1.5"),
        ("0::/pod/job\n", {"pod/cpu.max": "50000 100000\n", "pod/job/cpu.max": "9 10\n"}, "0.5"),
        ("0::/\n", {"cpu.max": "100000 50000\n"}, "2"),
        (
            "7:memory:/m\n4:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "200000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            "2",
        ),
        (
            "4:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            None,
        ),
    ],
)
def test_a_quota_of_cpu_time(
    own: str,
    files: dict[str, str],
    quota: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in {
        "own": own,
        **{f"groups/{name}": text for name, text in files.items()},
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(host, "_OWN_CONTROL_GROUPS", tmp_path / "own")
    monkeypatch.setattr(host, "_CONTROL_GROUPS", tmp_path / "groups")
    said = f"; control groups leave it the time of {quota}" if quota else ""
    assert doctor._cores([]).endswith(f"in this host{said}")
