"""One rank of `python -m ringcomm tune`: measures all algorithms in turn, and takes the fastest."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

import ringcomm
from ringcomm.bench.cases import Case, case_of
from ringcomm.bench.contenders import TorchContender
from ringcomm.bench.options import sizes
from ringcomm.bench.sampling import Result, measure
from ringcomm.plan.algorithms import ALGORITHMS
from ringcomm.plan.plans import COLLECTIVES
from ringcomm.tuning import Rule, Time

TIMEOUT = timedelta(seconds=120)
UNTUNED = "untuned"  # the name of a group without a tuning
TURNS = 3
LEAST_TIMED = 1 << 10  # bytes; smaller calls take as long
IN_PLACE = ("all_reduce", "broadcast", "reduce")  # as torch has them
MARGIN = 0.1  # less than this is chance, and no reason to change the algorithm between two sizes


def rules_of(
    world_size: int, collective: str, seconds: Mapping[int, Mapping[str, float]]
) -> list[Rule]:
    """The rules that follow from what was measured.

    Args:
        world_size: the number of ranks.
        collective: its name.
        seconds: by size in bytes, ascending, and by algorithm.

    Returns:
        One rule for all neighbouring sizes of one algorithm, up to half of the way to the next
        size; the last ends with the largest, and larger calls choose as groups do without a tuning.
    """
    sizes = list(seconds)
    algorithms: list[str] = []
    for size in sizes:
        times = seconds[size]
        fastest = min(times, key=lambda name: times[name])
        before = algorithms[-1] if algorithms else next(iter(times))
        keeps = times.get(before, float("inf")) <= times[fastest] * (1 + MARGIN)
        algorithms.append(before if keeps else fastest)
    rules = []
    for index, algorithm in enumerate(algorithms):
        is_last = index + 1 == len(sizes)
        if is_last:
            rules.append(Rule(world_size, collective, sizes[-1], algorithm))
        elif algorithms[index + 1] != algorithm:
            most = (sizes[index] + sizes[index + 1]) // 2
            rules.append(Rule(world_size, collective, most, algorithm))
    return rules


def run(options: argparse.Namespace) -> int:
    """Measures, and on rank 0 writes rules and times to `options.rows`. Returns 0.

    Raises:
        RuntimeError: a result was wrong.
    """
    os.environ["RINGCOMM_TUNING"] = "off"
    torch.set_num_threads(1)
    ringcomm.init(TIMEOUT)
    world_size = dist.get_world_size()
    without_tuning = TorchContender(UNTUNED, ringcomm, ringcomm.new_group(timeout=TIMEOUT))
    contenders: dict[str, TorchContender] = {}
    found: list[dict[str, Any]] = []
    for collective in options.collectives:
        names = [name for name, each in ALGORITHMS[collective].items() if not each.two_level]
        for name in names:
            if name not in contenders:
                group = ringcomm.new_group(timeout=TIMEOUT, algorithm=name)
                contenders[name] = TorchContender(name, ringcomm, group)
        them = [*(contenders[name] for name in names), without_tuning]
        seconds = {
            nbytes: _seconds(them, collective, nbytes, options.samples) for nbytes in sizes(options)
        }
        untuned = {nbytes: times.pop(UNTUNED) for nbytes, times in seconds.items()}
        rules = [asdict(rule) for rule in rules_of(world_size, collective, seconds)]
        found.append({"rules": rules, "seconds": seconds, UNTUNED: untuned})
    if dist.get_rank() == 0:
        options.rows.write_text(json.dumps(found))
    ringcomm.barrier()
    ringcomm.destroy_process_group()
    return 0


def run_times(options: argparse.Namespace) -> int:
    """Measures what torch.distributed's calls take by a tuning, and writes that. Returns 0.

    Each rank has a core of its own, if there are enough, as in programs that compute. The least of
    all samples counts: it shows the machine when nothing else runs. All calls are sampled in turn,
    so that a busy moment does not fall on all samples of one call.

    Raises:
        RuntimeError: a result was wrong.
    """
    os.environ["RINGCOMM_TUNING"] = str(options.times_by)
    take_a_core()
    torch.set_num_threads(1)
    ringcomm.init(TIMEOUT)
    contender = TorchContender("ring", dist, ringcomm.new_group(timeout=TIMEOUT))
    least: dict[tuple[str, int], float] = {}
    for _ in range(TURNS):
        for collective in COLLECTIVES:
            for nbytes in [0] if collective == "barrier" else _sizes_of_times(2 * options.maxbytes):
                seconds = least_seconds(contender, collective, nbytes, options.samples)
                key = collective, nbytes
                least[key] = min(seconds, least.get(key, seconds))
    if dist.get_rank() == 0:
        times = [Time(dist.get_world_size(), *key, seconds) for key, seconds in least.items()]
        options.rows.write_text(json.dumps([asdict(time) for time in times]))
    ringcomm.barrier()
    ringcomm.destroy_process_group()
    return 0


def _sizes_of_times(most: int) -> list[int]:
    """Two for each power of two, as calls change their way between these.

    They go to where the caches have ended: larger calls are taken for as fast as the largest.
    """
    sizes = [LEAST_TIMED]
    while sizes[-1] < most:
        sizes += [sizes[-1] // 2 * 3, sizes[-1] * 2]
    return sizes


def take_a_core() -> None:
    """Binds this rank to one, unless there are more ranks: two on one core wait for its turns."""
    cores = sorted(os.sched_getaffinity(0))
    if int(os.environ["LOCAL_WORLD_SIZE"]) <= len(cores):
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"])]})


def least_seconds(contender: TorchContender, collective: str, nbytes: int, samples: int) -> float:
    """The least time of a call as torch makes it, in place or out of place. All ranks get the same.

    Raises:
        RuntimeError: a result was wrong.
    """
    case = _case(collective, nbytes)
    placements = [collective in IN_PLACE]
    results = _checked([contender], case, samples, placements)
    return min(result.minimum for result in results.values())


def _seconds(
    contenders: Sequence[TorchContender], collective: str, nbytes: int, samples: int
) -> dict[str, float]:
    """The medians by algorithm: of what works in place and out of place, the mean of both."""
    medians: dict[str, list[float]] = {}
    results = _checked(contenders, _case(collective, nbytes), samples, (False, True))
    for (name, _), result in results.items():
        medians.setdefault(name, []).append(result.median)
    return {name: fmean(times) for name, times in medians.items()}


def _case(collective: str, nbytes: int) -> Case:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    cpu = torch.device("cpu")
    return case_of(collective, nbytes, torch.float32, "sum", 0, rank, world_size, cpu)


def _checked(
    contenders: Sequence[TorchContender], case: Case, samples: int, placements: Sequence[bool]
) -> dict[tuple[str, bool], Result]:
    results, _ = measure(list(contenders), case, samples=samples, warmups=1, placements=placements)
    for (name, _), result in results.items():
        if result.wrong:
            raise RuntimeError(
                f"{case.collective.name} of {case.nbytes} bytes by {name}: the result is wrong"
            )
    return results
