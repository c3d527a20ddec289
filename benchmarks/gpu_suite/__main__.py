"""The command line of gpu_suite.sh."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import date
from pathlib import Path

from gpu_suite import rehearsal
from gpu_suite.phases import ROOT, Phase, phases, several_phases
from gpu_suite.runner import MixedError, Runner, preloaded

DESCRIPTION = """\
Builds ringcomm, runs the tests that need a GPU, and measures it against NCCL.

Needs a GPU, torch with CUDA, nvcc, pytest and pytest-timeout, and no network. Every phase has a
time limit and ends with all its processes; one that fails does not keep the others from running.
The three parts take at most 10 minutes each. Several ranks share GPU 0, which needs NCCL 2.30.3 or
newer: where torch brings an older one, RINGCOMM_NCCL=/path/to/libnccl.so.2 (or .so.2.xz) names the
one to load in its place.

several_gpus.sh is the same with --several, for a machine with 2 GPUs or more: each rank has its
own, any NCCL will do, and all takes about 10 minutes. Send back DIRECTORY."""

EPILOG = """\
What is in DIRECTORY, beside a log for each phase:
  phases.csv          what became of each phase
  probe.log           GPU, driver, tools, NCCL, and whether MPS runs
  built.tar.gz        what was built, for --built
  kernels.log         the reduction kernels' tests, alone and under compute-sanitizer
  reduce.csv          the reduction kernels under Nsight Compute, and roofline.png of it
  correctness-*.csv   tests/gpu, a row for each test, also streams.csv and training.csv
  reduce_kernels.csv  the reduction kernels against torch's operations and a copy
  all_reduce.csv      ring against NCCL: 2 and 4 ranks, 1 KiB to 1 GiB, float32 and bfloat16, and
                      all_reduce.png of it
  timeline.json       all-reduces of 64 MiB, for Perfetto or chrome://tracing

With --several:
  probe.log, phases.csv, and a log for each phase, likewise
  peers.csv           whether each GPU reaches each other one's memory, and how fast it copies there
  correctness.csv     tests/gpu as messages, fused.csv by fused kernels: 2, 4 or 8 ranks
  all_reduce.csv      ring against NCCL with as many CTAs, and with NCCL's default settings (column
                      nccl_ctas), all GPUs, 1 KiB to 256 MiB, and all_reduce.png of it
  plans.csv           the fused kernel's plans, each against NCCL with its default settings

--rehearse needs no GPU: the CPU, gloo and small scripts stand in for the GPU, NCCL and the tools.
What it writes is marked as a rehearsal, and goes to build/ unless a directory is given."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_suite.sh",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", nargs="?", type=Path, help="of the results")
    parser.add_argument("--phase", action="append", help="run this one only; may be repeated")
    parser.add_argument("--part", type=int, choices=(1, 2, 3), help="run this part only")
    parser.add_argument("--built", type=Path, metavar="TARBALL", help="instead of building")
    parser.add_argument(
        "--archive",
        type=Path,
        metavar="FOLDER",
        help="after each phase, put all results there as results.tar.gz, and built.tar.gz",
    )
    parser.add_argument("--rehearse", action="store_true", help="on a machine without a GPU")
    parser.add_argument("--several", action="store_true", help="a GPU for each rank")
    parser.add_argument("--list", action="store_true", help="list the phases and their limits")
    options = parser.parse_args()
    if options.rehearse and not rehearsal.ON:
        parser.error("start gpu_suite.sh, which puts the stand-ins in place")
    folder = ROOT / "build" if rehearsal.ON else ROOT / "benchmarks" / "results"
    kind = "several-gpus" if options.several else "gpu"
    name = "rehearsal" if rehearsal.ON else kind
    options.directory = (options.directory or folder / f"{name}-{date.today()}").resolve()
    built = options.built and options.built.resolve()
    every = phases(options.directory, built)
    if options.several:
        gpus = number_of_gpus()
        if gpus < 2:
            parser.error(f"--several needs 2 GPUs or more, and torch finds {gpus}")
        every = several_phases(gpus, options.directory, built)
    if unknown := set(options.phase or ()) - {phase.name for phase in every}:
        parser.error(
            f"no phase {', '.join(unknown)}; there are {', '.join(phase.name for phase in every)}"
        )
    options.phases = [phase for phase in every if chosen(phase, options)]
    return options


def number_of_gpus() -> int:
    """That torch finds, or that a rehearsal stands in for."""
    if rehearsal.ON:
        return rehearsal.GPUS
    import torch

    return torch.cuda.device_count()


def chosen(phase: Phase, options: argparse.Namespace) -> bool:
    if options.phase:
        return phase.name in options.phase or phase.name == "unpack"
    return options.part is None or phase.part in (0, options.part)


def end_on_sigterm() -> None:
    """As an exception, so that what runs is ended, too, and the results are kept."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def main() -> int:
    options = parse()
    if options.list:
        for phase in options.phases:
            part = f"part {phase.part}" if phase.part else "all parts"
            print(f"{phase.name:<16} {phase.seconds:4} s  {part}")
        return 0
    end_on_sigterm()
    try:
        with preloaded(os.environ.get("RINGCOMM_NCCL", "")) as preload:
            runner = Runner(options.directory, options.archive, preload)
            return 0 if runner.run(options.phases) else 1
    except (MixedError, FileNotFoundError) as error:
        print(f"gpu_suite.sh: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
