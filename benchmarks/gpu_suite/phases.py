"""The phases: what each runs, how long it may take, and what it must leave behind."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gpu_suite import device

ROOT = Path(__file__).resolve().parents[2]
_BENCHMARKS = ROOT / "benchmarks"
_PROFILE = _BENCHMARKS / "profile"
_BUILD_SUMMARY = "from ringcomm import _build_info; print(_build_info.SUMMARY)"

Command = list[str]


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: int  # for all its commands together
    part: int  # the part of the suite that it is in; 0: all
    file: str  # that it writes, beside NAME.log
    commands: list[Command]
    needs_build: bool = True
    ranks: bool = False  # several on one GPU, for which a newer NCCL may have to be loaded


def python(*arguments: str | Path) -> Command:
    return [sys.executable, *map(str, arguments)]


def module(name: str, *arguments: str | Path) -> Command:
    return python("-m", f"gpu_suite.{name}", *arguments)


def _tests(results: Path, name: str, seconds: int, part: int, *arguments: str | Path) -> Phase:
    rows = f"{name}.csv"
    command = module("run_tests", results / rows, *arguments)
    return Phase(name, seconds, part, rows, [command], ranks=True)


def _all_reduce(results: Path, name: str, seconds: int, *arguments: str) -> Phase:
    """Its rows end in time for the table."""
    rows = "all_reduce.csv"
    command = python(_BENCHMARKS / "gpu_all_reduce.py", *arguments, "--csv", results / rows)
    command += ["--seconds", str(seconds - 40), *(_FEW if device.REHEARSAL else ())]
    return Phase(name, seconds, 3, rows, [command], ranks=True)


_FEW = ("--sizes", "1K,64K", "--iters", "2")


def phases(results: Path, built: Path | None = None) -> list[Phase]:
    """In the order in which they run; with `built` given, that is unpacked and nothing compiled."""
    small = device.REHEARSAL
    setup = _BENCHMARKS / "gpu_suite" / "stand_ins" if device.REHEARSAL else ROOT
    checkout = results / "unpacked" if device.REHEARSAL else ROOT
    tarball = results / "built.tar.gz"
    build = Phase(
        "build",
        190,
        1,
        tarball.name,
        [
            python(setup / "setup.py", "build_ext", "--inplace"),
            python("-c", _BUILD_SUMMARY),
            module("built", "pack", tarball),
        ],
        needs_build=False,
    )
    unpack = Phase(
        "unpack",
        30,
        0,
        "unpack.log",
        [module("built", "unpack", built or tarball, checkout), python("-c", _BUILD_SUMMARY)],
        needs_build=False,
    )
    tests = ROOT / "tests" / "gpu"
    collectives = tests / "test_gpu_collectives.py"
    # A rehearsal is to run every line, not every case.
    two = "2ranks and not 2ranks-direct" if small else "2ranks"
    four = "4ranks and check_messages" if small else "4ranks"
    streams = ["-k", "2ranks"] if small else []
    title = device.label() if device.REHEARSAL else ""
    return [
        Phase("probe", 40, 0, "probe.log", [module("probe")], needs_build=False, ranks=True),
        unpack if built else build,
        Phase("kernels", 100, 1, "kernels.log", [module("kernels")], needs_build=False),
        Phase(
            "ncu",
            50,
            1,
            "roofline.png",
            [
                [str(_PROFILE / "ncu_reduce.sh"), "-o", str(results / "reduce")]
                + (["--size", "4K"] if small else []),
                python(
                    *(_PROFILE / "roofline.py", results / "reduce.csv"),
                    *("--plot", results / "roofline.png", "--title", title),
                ),
            ],
        ),
        Phase("smoke", 40, 1, "smoke.log", [module("smoke")], ranks=True),
        _tests(results, "correctness-2", 160, 1, collectives, "-k", two),
        _tests(results, "correctness-4", 200, 2, collectives, "-k", four),
        _tests(results, "streams", 180, 2, tests / "test_gpu_streams.py", *streams),
        _tests(results, "training", 100, 2, tests / "test_gpu_training.py"),
        Phase(
            "reduce-timing",
            60,
            3,
            "reduce_kernels.csv",
            [
                python(
                    *(_BENCHMARKS / "reduce_kernels.py", "--devices", "cuda"),
                    *("--dtypes", "float,bfloat16,half", "--ops", "sum,max"),
                    *("--sizes", "4K" if small else "64K,1M,64M,256M"),
                    *("--csv", results / "reduce_kernels.csv"),
                )
            ],
        ),
        _all_reduce(results, "timing-2", 150, "--nproc", "2"),
        _all_reduce(results, "timing-4", 150, "--nproc", "4", *(["--no-mps"] if small else [])),
        _all_reduce(
            *(results, "timing-channels", 90, "--nproc", "2", "--channels", "1,2"),
            *("--dtypes", "float32"),
        ),
        Phase(
            "timeline",
            50,
            3,
            "timeline.json",
            [
                python(
                    *(_PROFILE / "trace.py", "--device", "cuda", "--nproc", "2"),
                    *("--size", "64K" if small else "64M", "-o", results / "timeline.json"),
                )
            ],
            ranks=True,
        ),
    ]
