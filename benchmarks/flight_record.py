"""What the flight record costs: nanoseconds per all-reduce, with it and without.

    python benchmarks/flight_record.py

One rank alone, and its thread's processor time, so that nothing is measured but the call. Processes
that do not record, that record, and that record with stacks take turns; each times many calls, and
the medians of all processes are compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import ringcomm
from ringcomm.arguments import number
from ringcomm.usage import Parser

SETTINGS = {
    "off": {"RINGCOMM_FLIGHT_RECORDS": "0"},
    "on": {},
    "with stacks": {"RINGCOMM_FLIGHT_STACKS": "1"},
}
CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "ringcomm.all_reduce": ringcomm.all_reduce,
    "dist.all_reduce": dist.all_reduce,
}


def nanoseconds(call: Callable[[torch.Tensor], object], repeats: int) -> float:
    tensor = torch.ones(16)
    for _ in range(repeats // 10):
        call(tensor)
    started = time.thread_time_ns()
    for _ in range(repeats):
        call(tensor)
    return (time.thread_time_ns() - started) / repeats


def measure(job: tuple[str, int]) -> dict[str, float]:
    setting, repeats = job
    os.environ.update(SETTINGS[setting])
    dist.init_process_group("ring", store=dist.HashStore(), rank=0, world_size=1)
    times = {name: nanoseconds(call, repeats) for name, call in CALLS.items()}
    dist.destroy_process_group()
    return times


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=number(1), default=25, help="processes per setting")
    parser.add_argument(
        "--repeats", type=number(1), default=20_000, help="calls that are timed in each"
    )
    options = parser.parse_args()

    samples: dict[str, dict[str, list[float]]] = {
        call: {setting: [] for setting in SETTINGS} for call in CALLS
    }
    jobs = [(setting, options.repeats) for _ in range(options.runs) for setting in SETTINGS]
    # A process for each job, as what is recorded is settled once.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for (setting, _), times in zip(jobs, pool.imap(measure, jobs), strict=True):
            for call, nanoseconds_per_call in times.items():
                samples[call][setting].append(nanoseconds_per_call)
    print(f"{'ns per call, median':21}" + "".join(f"{setting:>13}" for setting in SETTINGS))
    for call, by_setting in samples.items():
        medians = [statistics.median(by_setting[setting]) for setting in SETTINGS]
        print(f"{call:21}" + "".join(f"{median:13.0f}" for median in medians))


if __name__ == "__main__":
    main()
