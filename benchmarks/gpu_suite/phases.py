"""The phases: what each runs, how long it may take, and what it must leave behind."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gpu_suite import rehearsal

ROOT = Path(__file__).resolve().parents[2]
_BENCHMARKS = ROOT / "benchmarks"
_PROFILE = _BENCHMARKS / "profile"
_TESTS = ROOT / "tests" / "gpu"
_BUILD_SUMMARY = "from ringcomm import _build_info; print(_build_info.SUMMARY)"

Command = list[str]


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: int  # for all its commands together
    part: int  # of the suite that it is in; 0: of all
    file: str  # that it must leave behind, beside its log or as such
    commands: list[Command]
    needs_build: bool = True
    ranks: bool = False  # several on one GPU, for which a newer NCCL may have to be loaded
    mps: bool = False  # they run side by side where MPS can be had; it is started for this phase


def phases(results: Path, built: Path | None = None) -> list[Phase]:
    """In the order in which they run; with `built` given, that is unpacked and nothing compiled."""
    return [
        Phase("probe", 30, 0, "probe.log", [_module("probe")], needs_build=False, ranks=True),
        _unpack(results, built) if built else _build(results),
        Phase("kernels", 110, 1, "kernels.log", [_module("kernels")], needs_build=False),
        _racecheck(),
        _ncu(results),
        Phase("smoke", 50, 1, "smoke.log", [_module("smoke")], ranks=True),
        *_tests(results),
        *_timing(results),
    ]


def several_phases(gpus: int, results: Path, built: Path | None = None) -> list[Phase]:
    """The same for a machine with that many GPUs, one for each rank."""
    most = max(size for size in (2, 4, 8) if size <= gpus)  # the ranks of tests
    ranks = ("-k", *_full(f"{most}ranks", small=("2ranks and ring and all_reduce",)))

    def tests(name: str, file: str) -> Phase:
        rows = results / f"{name}.csv"
        return Phase(name, 70, 0, rows.name, [_module("run_tests", rows, _TESTS / file, *ranks)])

    def all_reduce(file: str, *options: str) -> Command:
        small = ("--sizes", "1K", "--iters", "1", "--dtypes", "float32")
        script = _BENCHMARKS / "gpu_all_reduce.py"
        common = ("--nproc", str(gpus), "--no-mps", "--ctas", "32", "--iters", "5")
        csv = ("--csv", results / file)
        return _python(script, *common, "--seconds", "35", *options, *_full(small=small), *csv)

    def plan(algorithm: str) -> Command:
        sizes = ("--dtypes", "float32", "--sizes", "256K,1M,4M,16M,64M")
        chosen = ("--executors", "fused", "--algorithm", algorithm)
        return all_reduce("plans.csv", *chosen, *sizes, "--nccl-defaults")

    sizes = ("--sizes", "1K,64K,1M,16M,256M")
    peers = [_module("peers", results / "peers.csv")]
    equal = [all_reduce("all_reduce.csv", *sizes)]
    defaults = [all_reduce("all_reduce.csv", *sizes, "--nccl-defaults")]
    plans = [plan(each) for each in ("ring", "direct", "one_shot", "recursive_doubling")]
    table, picture = results / "all_reduce.csv", results / "all_reduce.png"
    curves = [_python(_BENCHMARKS / "gpu_curves.py", table, "--plot", picture)]
    return [
        Phase("probe", 30, 0, "probe.log", [_module("probe")], needs_build=False),
        Phase("peers", 20, 0, "peers.csv", peers, needs_build=False),
        _unpack(results, built) if built else _build(results, keeps=False),
        Phase("smoke", 35, 0, "smoke.log", [_module("smoke")]),
        tests("correctness", "test_gpu_collectives.py"),
        tests("fused", "test_gpu_fused.py"),
        Phase("timing-equal", 70, 0, table.name, equal),
        Phase("timing-defaults", 70, 0, table.name, defaults),
        Phase("plans", 120, 0, "plans.csv", plans),
        Phase("curves", 15, 0, picture.name, curves),
    ]


def _python(*arguments: str | Path) -> Command:
    return [sys.executable, *map(str, arguments)]


def _module(name: str, *arguments: str | Path) -> Command:
    return _python("-m", f"gpu_suite.{name}", *arguments)


def _full(*arguments: str, small: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What only a measurement takes time for: a rehearsal runs every line, but few cases."""
    return small if rehearsal.ON else arguments


def _build(results: Path, keeps: bool = True) -> Phase:
    setup = _BENCHMARKS / "gpu_suite" / "stand_ins" if rehearsal.ON else ROOT
    tarball = results / "built.tar.gz"
    commands = [
        _python(setup / "setup.py", "build_ext", "--inplace"),
        _python("-c", _BUILD_SUMMARY),
    ]
    if not keeps:
        return Phase("build", 280, 0, "build.log", commands, needs_build=False)
    commands.append(_module("built", "pack", tarball))
    return Phase("build", 280, 1, tarball.name, commands, needs_build=False)


def _unpack(results: Path, tarball: Path) -> Phase:
    checkout = results / "unpacked" if rehearsal.ON else ROOT
    commands = [_module("built", "unpack", tarball, checkout), _python("-c", _BUILD_SUMMARY)]
    return Phase("unpack", 30, 0, "unpack.log", commands, needs_build=False)


def _racecheck() -> Phase:
    """Checks the fused kernels, whose threads share memory. Without peers, no rank has to wait.

    The reductions' threads share nothing.
    """
    program = _BENCHMARKS / "fused_kernel.py"
    options = ("--sizes", "64K", "--iters", "1", "--repeats", "1", "--dtypes", "float,bfloat16")
    tool = ["compute-sanitizer", "--tool", "racecheck", "--error-exitcode", "1"]
    return Phase("racecheck", 35, 1, "racecheck.log", [[*tool, *_python(program, *options)]])


def _ncu(results: Path) -> Phase:
    name, picture = results / "reduce", results / "roofline.png"
    title = _full(small=("--title", rehearsal.LABEL))
    script, small = str(_PROFILE / "ncu_reduce.sh"), _full(small=("--size", "4K"))
    fused = results / "fused_alone"
    commands = [
        [script, "-o", str(name), *small],
        _python(_PROFILE / "roofline.py", f"{name}.csv", "--plot", picture, *title),
        [script, "--fused", "ring", "-o", str(fused), *small],
        _python(_PROFILE / "roofline.py", f"{fused}.csv"),
    ]
    return Phase("ncu", 75, 1, picture.name, commands)


def _tests(results: Path) -> list[Phase]:
    def phase(name: str, seconds: int, file: str, *chosen: str) -> Phase:
        rows = f"{name}.csv"
        command = _module("run_tests", results / rows, _TESTS / file, *chosen)
        return Phase(name, seconds, 2, rows, [command], ranks=True, mps=True)

    collectives = "test_gpu_collectives.py"
    two = _full("1ranks or 2ranks", small=("1ranks and gathered or 2ranks and not 2ranks-direct",))
    four = _full("4ranks", small=("4ranks and check_messages",))
    fused = _full(small=("-k", "2ranks and ring and all_reduce"))
    streams = _full(small=("-k", "2ranks"))
    return [
        phase("correctness-2", 100, collectives, "-k", *two),
        phase("correctness-4", 130, collectives, "-k", *four),
        phase("fused", 130, "test_gpu_fused.py", *fused),
        phase("streams", 110, "test_gpu_streams.py", *streams),
        phase("training", 60, "test_gpu_training.py"),
    ]


def _timing(results: Path) -> list[Phase]:
    def phase(name: str, seconds: int, script: Path, file: str, *options: str, **kind: bool):
        command = _python(script, *options, "-o" if file.endswith("json") else "--csv")
        return Phase(name, seconds, 3, file, [[*command, str(results / file)]], **kind)

    def all_reduce(name: str, seconds: int, *options: str) -> Phase:
        """It begins nothing any more when there is just time for what has begun, and the table."""
        options += ("--seconds", str(seconds - 50))
        options += _full(small=("--sizes", "1K,64K", "--iters", "2"))
        script = _BENCHMARKS / "gpu_all_reduce.py"
        return phase(name, seconds, script, "all_reduce.csv", *options, ranks=True)

    dtypes = ("--dtypes", "float,bfloat16,half", "--ops", "sum,max")
    sizes = _full("--sizes", "64K,1M,64M,256M", small=("--sizes", "4K"))
    time_sliced = _full(small=("--no-mps",))
    few = ("--dtypes", "float32", "--executors", "messages", *time_sliced)
    table, picture = results / "all_reduce.csv", results / "all_reduce.png"
    curves = (_BENCHMARKS / "gpu_curves.py", table, "--plot", picture)
    return [
        phase(
            *("reduce-timing", 60, _BENCHMARKS / "reduce_kernels.py", "reduce_kernels.csv"),
            *("--devices", "cuda", *dtypes, *sizes),
        ),
        phase(
            *("fused-timing", 40, _BENCHMARKS / "fused_kernel.py", "fused_kernel.csv"),
            *_full(small=("--sizes", "4K", "--iters", "1")),
        ),
        all_reduce("timing-2", 150, "--nproc", "2"),
        all_reduce("timing-4", 150, "--nproc", "4", *time_sliced),
        all_reduce("timing-channels", 70, "--nproc", "2", "--channels", "2,4", *few),
        Phase("curves", 15, 3, "all_reduce.png", [_python(*curves)]),
        phase(
            *("timeline", 50, _PROFILE / "trace.py", "timeline.json", "--device", "cuda"),
            *("--nproc", "2", "--size", *_full("64M", small=("64K",))),
            ranks=True,
        ),
    ]
