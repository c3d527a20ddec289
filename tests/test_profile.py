"""The profiling scripts, as far as a machine without a GPU can run them, and the CPU's spans."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch.profiler import ProfilerActivity, profile

import ringcomm

ROOT = Path(__file__).resolve().parents[1]
PROFILE = ROOT / "benchmarks" / "profile"


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        text=True,
        capture_output=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, **environment},
    )


# ---- Spans


def spans_of_one_all_reduce(rank: Rank, algorithm: str, count: int) -> list[str]:
    os.environ["RINGCOMM_ALGORITHM"] = algorithm
    group = ringcomm.new_group()
    tensor = torch.ones(count)
    dist.all_reduce(tensor, group=group)  # unrecorded
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(tensor, group=group)
    assert tensor.eq(rank.world_size**2).all()
    outer = [event for event in profiler.events() if event.name == "ring:all_reduce"]
    steps = [event for event in profiler.events() if event.name.startswith("step ")]
    assert len(outer) == 1
    for step in steps:
        assert outer[0].time_range.start <= step.time_range.start
        assert step.time_range.end <= outer[0].time_range.end
    return [step.name for step in steps]


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_spans_are_the_plans_steps(algorithm: str) -> None:
    """Each slice of what a rank receives in a step, and of what it sends first, is a span."""
    world_size = 3
    plans = ringcomm.plan.all_reduce(algorithm, world_size=world_size)
    named = on_processes(spans_of_one_all_reduce, world_size, algorithm, 3_000_000, backend="ring")
    for rank, names in enumerate(named):
        found = [tuple(map(int, re.findall(r"\d+", name))) for name in names]
        assert names == [f"step {step} slice {number}" for step, number in found]
        slices = {number for _, number in found}
        assert len(slices) > 1 and slices == set(range(len(slices)))
        per_step = Counter(step for step, number in found if number == 0)
        receiving = {s for s, step in enumerate(plans[rank].steps) if step.recvs}
        assert set(per_step) == receiving
        assert all(
            Counter(step for step, k in found if k == number) == per_step for number in slices
        )


def test_small_buffers_have_no_steps() -> None:
    for names in on_processes(spans_of_one_all_reduce, 2, "ring", 8, backend="ring"):
        assert names == []


def names_between_hosts(rank: Rank, links: str) -> set[str]:
    os.environ.update(RINGCOMM_HOSTID=f"host{rank.rank}", RINGCOMM_LINKS=links)
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    names: set[str] = set()
    for count in (1, 100_000):
        tensor = torch.ones(count)
        for _ in range(20):
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                dist.all_reduce(tensor)
            names |= {event.name for event in profiler.events()}
    return names


@pytest.mark.parametrize("links", ["gloo", "auto"])
def test_the_links_own_work_is_no_span(links: str) -> None:
    """It may end when the profiler has gone, whose memory it would then write to."""
    for names in on_processes(names_between_hosts, 2, links):
        steps = {name for name in names if re.fullmatch(r"step \d+ slice \d+", name)}
        assert steps
        assert names - steps == {"c10d::allreduce_", "ring:all_reduce"}


# ---- The command lines


@pytest.mark.parametrize("script", ["ncu_reduce.sh", "nsys_ring.sh", "roofline.py", "trace.py"])
def test_help(script: str) -> None:
    command = [PROFILE / script] if script.endswith(".sh") else [sys.executable, PROFILE / script]
    result = run(*command, "--help")
    assert result.returncode == 0 and "needs" in result.stdout.lower()


def test_ncu_command_line() -> None:
    result = run(
        PROFILE / "ncu_reduce.sh",
        "--dry-run",
        "-o",
        "x",
        "--dtypes",
        "float,half",
        "--ops",
        "sum,max",
    )
    assert result.returncode == 0, result.stderr
    profiling, exporting = map(shlex.split, result.stdout.splitlines())
    assert profiling[0] == "ncu" and "--clock-control" in profiling
    assert profiling[profiling.index("--clock-control") + 1] == "none"
    # torch has a reduce_kernel, too: ours is known by its namespace, of which only the demangled
    # name tells.
    assert profiling[profiling.index("--kernel-name-base") + 1] == "demangled"
    assert profiling[profiling.index("--kernel-name") + 1] == "regex:ringcomm::"
    kernels = (ROOT / "csrc" / "reduce" / "device_kernels.h").read_text()
    assert re.search(r"__global__[^;{]*\breduce_kernel\(", kernels), "the kernel has another name"
    # All launches but the first, by default.
    assert profiling[profiling.index("--launch-skip") + 1] == "1"
    assert "--launch-count" not in profiling
    counted = run(PROFILE / "ncu_reduce.sh", "--dry-run", "--count", "3").stdout
    assert "--launch-count 3" in counted
    (metrics,) = [word for word in profiling if word.startswith("gpu__time")]
    assert set(metrics.split(",")) == {
        roofline.DURATION,
        roofline.NBYTES,
        roofline.ACHIEVED,
        roofline.PER_CYCLE,
        roofline.CYCLES,
    }
    program = profiling.index(str(ROOT / "benchmarks" / "reduce_kernels.py"))
    options = run(sys.executable, *profiling[program:], "--devices", "cpu", "--sizes", "4K")
    assert options.returncode == 0, options.stderr  # the program takes these options
    assert exporting[:3] == ["ncu", "--import", "x.ncu-rep"] and "base" in exporting


def test_nsys_command_line() -> None:
    result = run(PROFILE / "nsys_ring.sh", "--dry-run", "--nproc", "4", "--size", "1M")
    assert result.returncode == 0, result.stderr
    profiling, statistics = map(shlex.split, result.stdout.splitlines())
    assert profiling[:2] == ["nsys", "profile"]
    assert profiling[profiling.index("--capture-range") + 1] == "cudaProfilerApi"
    assert "--nsys" in profiling and profiling[profiling.index("--nproc") + 1] == "4"
    assert statistics[:2] == ["nsys", "stats"]


@pytest.mark.parametrize("script", ["ncu_reduce.sh", "nsys_ring.sh"])
def test_scripts_say_what_is_missing(script: str, tmp_path: Path) -> None:
    for name in ("bash", "env", "dirname", "tr", "wc"):
        (tmp_path / name).symlink_to(Path("/usr/bin") / name)
    result = run(PROFILE / script, PATH=str(tmp_path))
    assert result.returncode == 2 and "is not on the PATH" in result.stderr
    assert "unknown option --fast" in run(PROFILE / script, "--fast").stderr
    assert "-o needs a value" in run(PROFILE / script, "-o").stderr


# ---- roofline.py


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


roofline = _load(PROFILE / "roofline.py")

KERNEL = (
    "void ringcomm::<unnamed>::reduce_kernel<(ringcomm::DType){}, (ringcomm::ReduceOp){}, (int)2>"
    "(ringcomm::DeviceArguments)"
)


def ncu_csv(change: Callable[[str], str] = lambda text: text) -> list[str]:
    """What ncu writes, in form; the figures are made up.

    Of float32 sums, the launches have 2.0, 1.0 and 1.5 TB/s of 2 KiB a cycle at 1.5 GHz.
    """
    columns = [
        "ID",
        "Process ID",
        "Kernel Name",
        "dram__bytes.sum",
        "dram__bytes.sum.peak_sustained",
        "dram__bytes.sum.per_second",
        "dram__cycles_elapsed.avg.per_second",
        "gpu__time_duration.sum",
    ]
    units = ["", "", "", "byte", "byte/cycle", "byte/second", "cycle/second", "ns"]
    first = KERNEL.format(1, 0)
    second = KERNEL.format(3, 4)
    rows = [
        [first, "200,000,000", "2,048", "2,000,000,000,000", "1,500,000,000", "100,000"],
        [first, "200,000,000", "2,048", "1,000,000,000,000", "1,500,000,000", "200,000"],
        [first, "200,000,000", "2,048", "1,500,000,000,000", "1,500,000,000", "133,333"],
        [second, "100,000,000", "2,048", "2.5e+12", "1,500,000,000", "40,000.5"],
    ]
    lines = [columns, units, *([str(i), "77", *row] for i, row in enumerate(rows))]
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return ["==PROF== Connected to process 77 (python3)", *change(text).splitlines()]


def test_roofline_reads_columns_by_name_and_units() -> None:
    first, second = roofline.read(ncu_csv())
    assert first.name == "reduce_kernel<float32, sum, 2>"
    assert second.name == "reduce_kernel<bfloat16, max, 2>"
    assert (first.launches, second.launches) == (3, 1)
    assert first.achieved == 1.5e12 and second.achieved == 2.5e12
    assert first.peak == 2048 * 1.5e9
    assert first.nbytes == 2e8
    assert first.duration == pytest.approx(133.333e-6)
    assert second.duration == pytest.approx(40.0005e-6)

    short = ncu_csv(lambda text: re.sub(r"[\w<>]+::|\((\w+::)*\w+\)(?=\d)", "", text))
    assert "reduce_kernel<1, 0, 2>" in short[3]  # as ncu 2025.3 has it
    assert roofline.read(short) == [first, second]

    rows = [re.findall(r'"[^"]*"', line) for line in ncu_csv()[1:]]
    moved = [",".join([row[0], *reversed(row[1:])]) for row in rows]  # the ID stays in front
    assert roofline.read(moved) == [first, second]


def test_units() -> None:
    assert roofline.scale("ns") == roofline.scale("nsecond") == 1e-9
    assert roofline.scale("Gbyte/second") == 1e9
    assert roofline.scale("byte/ns") == pytest.approx(1e9)
    assert roofline.scale("Ghz") == 1e9
    with pytest.raises(roofline.CsvError, match="'inch'"):
        roofline.scale("inch")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda text: text.replace("dram__bytes.sum.per_second", "other"),
            "per_second are missing",
        ),
        (lambda text: text.replace('"2.5e+12"', '"n/a"'), "'n/a', not a number"),
        (lambda text: "\n".join(text.splitlines()[:2]), "no kernel was profiled"),
        (lambda text: "", "no line begins with"),
        (
            lambda text: "==ERROR== ERR_NVGPUCTRPERM - no permission",
            "RestrictProfilingToAdminUsers=0",
        ),
    ],
)
def test_roofline_refuses(tmp_path: Path, change: Callable[[str], str], words: str) -> None:
    file = tmp_path / "raw.csv"
    file.write_text("\n".join(ncu_csv(change)))
    with pytest.raises(roofline.CsvError, match=words):
        roofline.read(file.read_text().splitlines())


def test_roofline_as_a_program(tmp_path: Path) -> None:
    file, picture = tmp_path / "raw.csv", tmp_path / "roofline.png"
    file.write_text("\n".join(ncu_csv()))
    result = run(sys.executable, PROFILE / "roofline.py", file, "--plot", picture)
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "float32" in line]
    assert line.split()[-5:] == ["1500", "GB/s", "3072", "GB/s", "49%"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = run(
        *(sys.executable, PROFILE / "roofline.py", file, "--plot", picture, "--title", "some GPU")
    )
    assert "some GPU" in result.stdout and b"some GPU" in picture.read_bytes()
    result = run(sys.executable, PROFILE / "roofline.py", tmp_path / "none.csv")
    assert result.returncode == 1 and "Traceback" not in result.stderr


def test_enumerators_are_those_of_the_kernels() -> None:
    header = (ROOT / "csrc" / "reduce" / "types.h").read_text()
    for enum, names in (("DType", roofline.DTYPES), ("ReduceOp", roofline.OPS)):
        (body,) = re.findall(rf"enum class {enum} [^{{]*{{([^}}]*)}}", header)
        found = [name.lower() for name in re.findall(r"k(\w+)", body)]
        assert found == [name.replace("_", "") for name in names]
