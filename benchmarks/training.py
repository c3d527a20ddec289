"""Training steps of GPT-2 and of a vision transformer, by DDP and FSDP2, on ring and on gloo.

    python benchmarks/training.py --nproc 2
    python benchmarks/training.py --models gpt2-124m --length 128 --dtypes float32

The models have random weights, and the data is made by the script; nothing is downloaded. Jobs on
ring, on ring with tensors in shared memory and on gloo take turns, and the table shows the medians
of all jobs. Every rank has one thread.

What communication takes of a step is measured in two ways:

    DDP      forward and backward, less the same of the same batch under no_sync()
    FSDP2    the time in all-gathers and reduce-scatters, which waits for the other ranks, too

All losses are compared. The benchmark fails if two jobs on ring end with other bits, or if a loss
of ring differs from gloo's by more than rounding explains. pip install -e '.[models]' installs
transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from common import listed, rotated
from jobs import (
    DTYPES,
    CallTimer,
    WrongResultsError,
    add_job_arguments,
    beside,
    busy_processes,
    check_names,
    import_transformers,
    measure_and_report,
    prepare_rank,
    run_job,
)
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training_models import MODELS, Batch, make_batch, num_parameters

import ringcomm
from ringcomm.arguments import number
from ringcomm.units import readable_seconds
from ringcomm.usage import Parser

GLOO, RING, SHARED = "gloo", "ring", "ring, shared memory"
CONTENDERS = (RING, SHARED, GLOO)
WAYS = ("DDP", "FSDP2")
COLLECTIVES = (  # by which FSDP2 gathers and reduces, in older torch and from 2.15 on
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
)
WARM_UP = 2  # steps in which DDP makes its buckets again, and peers publish where tensors are
ROUNDINGS = 16  # of a loss, by which it may differ from gloo's

Case = tuple[str, str, str]  # model, way and dtype


# ---- A rank


@dataclass(frozen=True)
class Sample:
    """A case in a job: seconds, the losses of each step and rank, and each rank's last bits."""

    step: float
    communication: float  # of a step
    timed: float  # collectives of a step that were timed by themselves
    losses: list[list[float]]
    digests: list[str]


@dataclass(frozen=True)
class Training:
    """What one rank has seen; seconds and losses of each step."""

    steps: list[float]
    communication: list[float]
    timed: float  # collectives of a step
    losses: list[float]
    digest: str


def distributed(model: nn.Module, way: str) -> nn.Module:
    if way == "DDP":
        return DistributedDataParallel(model)
    blocks = next(each for each in model.modules() if isinstance(each, nn.ModuleList))
    for block in blocks:
        fully_shard(block)
    return fully_shard(model)


def digest_of(model: nn.Module) -> str:
    """A digest of the bits of all parameters, or of what this rank has of them."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = getattr(parameter, "to_local", lambda parameter=parameter: parameter)()
        digest.update(local.detach().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes if all ranks begin together, and what it returns."""
    dist.barrier()
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def train(options: argparse.Namespace, case: Case) -> Training:
    name, way, dtype = case
    torch.manual_seed(0)
    model = distributed(MODELS[name].make().to(DTYPES[dtype]), way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    collectives = CallTimer()
    steps, communication, losses = [], [], []

    def backward(batch: Batch) -> float:
        loss = model(**batch).loss
        loss.backward()
        return loss.item()

    for step in range(WARM_UP + options.steps):
        batch = make_batch(name, options, dist.get_rank(), step, dtype)
        before = collectives.seconds
        with collectives.timing(*COLLECTIVES):
            gradients, loss = seconds_of(functools.partial(backward, batch))
        spent = collectives.seconds - before
        update, _ = seconds_of(optimizer.step)
        optimizer.zero_grad()
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                alone, _ = seconds_of(functools.partial(backward, batch))
            optimizer.zero_grad()
            spent = gradients - alone
        steps.append(gradients + update)
        communication.append(spent)
        losses.append(loss)
    timed = collectives.calls / len(steps)
    return Training(steps[WARM_UP:], communication[WARM_UP:], timed, losses, digest_of(model))


def of_all_ranks(training: Training) -> Sample:
    """Medians of the steps: of the slowest rank's time, and of the mean communication."""
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, training)
    steps = zip(*(rank.steps for rank in ranks), strict=True)
    communication = zip(*(rank.communication for rank in ranks), strict=True)
    return Sample(
        statistics.median(map(max, steps)),
        statistics.median(map(statistics.mean, communication)),
        training.timed,
        [list(losses) for losses in zip(*(rank.losses for rank in ranks), strict=True)],
        [rank.digest for rank in ranks],
    )


def cases_of(options: argparse.Namespace) -> list[Case]:
    return list(itertools.product(options.models, options.ways, options.dtypes))


def train_all(options: argparse.Namespace) -> None:
    """A job: rank 0 saves the sample of each case."""
    prepare_rank()
    is_shared = options.backend == SHARED
    dist.init_process_group(RING if is_shared else options.backend)
    with ringcomm.shared_memory() if is_shared else contextlib.nullcontext():
        found = {case: of_all_ranks(train(options, case)) for case in cases_of(options)}
    if os.environ["RANK"] == "0":
        torch.save(found, options.result)
    dist.destroy_process_group()


# ---- The jobs together


@dataclass(frozen=True)
class Row:
    model: str
    parameters: int
    way: str
    dtype: str
    backend: str
    world_size: int
    busy: int
    step: float  # seconds
    rate: float  # units of all ranks per second
    unit: str  # tokens or images
    communication: float  # seconds of a step
    timed: float  # collectives of a step that were timed: all of FSDP2's, and none of DDP's
    first_loss: float  # the mean of the ranks
    last_loss: float
    difference: float  # from gloo's losses, relative, the largest of all steps
    jobs: int
    same_bits: int  # jobs with the losses and parameters of the backend's first one

    @property
    def share(self) -> float:
        return self.communication / self.step


def same_bits(one: Sample, other: Sample) -> bool:
    return (one.losses, one.digests) == (other.losses, other.digests)


def largest_difference(losses: list[list[float]], expected: list[list[float]]) -> float:
    """Relative, over the steps, of the ranks' mean."""
    means = zip(map(statistics.mean, losses), map(statistics.mean, expected), strict=True)
    return max(abs(ours - theirs) / theirs for ours, theirs in means)


def check(case: Case, found: dict[str, list[Sample]]) -> None:
    """Compares the jobs of a case, by contender.

    Raises:
        WrongResultsError: two jobs on ring differ, or a loss is not gloo's up to rounding.
    """
    name = ", ".join(case)
    first = found[RING][0]
    if not all(same_bits(first, each) for each in (*found[RING], *found[SHARED])):
        raise WrongResultsError(f"{name}: two jobs on ring end with other bits")
    difference = largest_difference(first.losses, found[GLOO][0].losses)
    allowed = ROUNDINGS * torch.finfo(DTYPES[case[-1]]).eps
    if not difference <= allowed:
        raise WrongResultsError(
            f"{name}: a loss on ring differs from gloo's by {difference:.2g} of it, and rounding "
            f"explains {allowed:.2g}"
        )


def rows_of(options: argparse.Namespace, case: Case, found: dict[str, list[Sample]]) -> list[Row]:
    """The medians of its jobs."""
    name, way, dtype = case
    rows = []
    for backend, samples in found.items():
        first, step = samples[0], statistics.median(each.step for each in samples)
        row = Row(
            model=name,
            parameters=num_parameters(name),
            way=way,
            dtype=dtype,
            backend=backend,
            world_size=options.nproc,
            busy=options.busy,
            step=step,
            rate=options.nproc * MODELS[name].units(options) / step,
            unit=MODELS[name].unit,
            communication=statistics.median(each.communication for each in samples),
            timed=first.timed,
            first_loss=statistics.mean(first.losses[0]),
            last_loss=statistics.mean(first.losses[-1]),
            difference=largest_difference(first.losses, found[GLOO][0].losses),
            jobs=len(samples),
            same_bits=sum(same_bits(first, each) for each in samples),
        )
        rows.append(row)
    return rows


def measure(options: argparse.Namespace) -> list[Row]:
    """Raises RanksFailedError if a job fails, and WrongResultsError if what it trained is wrong."""
    jobs: dict[str, list[dict[Case, Sample]]] = {backend: [] for backend in CONTENDERS}
    result = options.folder / "job"
    with busy_processes(options.busy):
        for r in range(options.rounds):
            for backend in rotated(CONTENDERS, r):
                run_job(options, "train", result, backend, options.nproc)
                jobs[backend].append(torch.load(result, weights_only=False))
    rows = []
    for case in cases_of(options):
        found = {backend: [job[case] for job in jobs[backend]] for backend in CONTENDERS}
        check(case, found)
        rows += rows_of(options, case, found)
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | way | dtype | backend | a step | per second | communication | share | loss "
        "| from gloo's | same bits |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        took = readable_seconds(max(0.0, row.communication))
        lines.append(
            f"| {row.model} | {row.way} | {row.dtype} | {row.backend} "
            f"| {readable_seconds(row.step)} | {row.rate:.{0 if row.rate > 99 else 1}f} {row.unit} "
            f"| {took} | {max(0.0, row.share):.0%} | {row.first_loss:.3f} to {row.last_loss:.3f} "
            f"| {row.difference:.1g} | {row.same_bits} of {row.jobs} |"
        )
    return "\n".join(lines) + "\n"


def note(options: argparse.Namespace) -> str:
    return (
        f"Training among {options.nproc} ranks with a thread each{beside(options.busy)}, by AdamW. "
        f"In each of {options.steps} timed steps, a rank has {options.batch} texts of "
        f"{options.length} tokens, or {options.batch} images. Medians of {options.rounds} jobs. "
        "The dtype is that of parameters, gradients and collectives. Communication is, of DDP, the "
        "time of forward and backward less that of the same under `no_sync()`; of FSDP2 it is the "
        "time in all-gathers and reduce-scatters, waiting for the other ranks included. The "
        "losses are those of the first and the last step. The column after them is the largest "
        "relative difference from gloo's losses of all steps. The last one says how many jobs of a "
        "backend have the same bits as its first one, in all losses and parameters."
    )


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=number(2), default=2, help="ranks of a job")
    for option, names, chosen in (
        ("--models", list(MODELS), ["gpt2-2m", "vit-3m"]),
        ("--ways", list(WAYS), list(WAYS)),
        ("--dtypes", list(DTYPES), list(DTYPES)),
    ):
        parser.add_argument(option, type=listed(str), default=chosen, help=", ".join(names))
    parser.add_argument("--batch", type=number(1), default=2, help="texts or images of a rank")
    parser.add_argument("--length", type=number(2), default=16, help="tokens of a text")
    parser.add_argument("--steps", type=number(1), default=3, help=f"after {WARM_UP} to warm up")
    add_job_arguments(parser)
    options = parser.parse_args()
    check_names(parser, "--models", options.models, list(MODELS))
    check_names(parser, "--ways", options.ways, WAYS)
    check_names(parser, "--dtypes", options.dtypes, list(DTYPES))
    if options.step:
        train_all(options)
        return 0
    import_transformers(parser, "gpt2.modeling_gpt2", "vit.modeling_vit")
    return measure_and_report(options, measure, Row, note, table)


if __name__ == "__main__":
    raise SystemExit(main())
