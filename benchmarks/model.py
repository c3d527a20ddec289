"""Tokens per second of a language model that is divided among ranks, on ring and on gloo.

    python benchmarks/model.py --nproc 2
    python benchmarks/model.py --busy 4

The model has Llama's architecture and random weights; nothing is downloaded. transformers divides
it (tp_plan="auto") and generates the likeliest tokens. Jobs of one process, on ring and on gloo
take turns, and the table shows the medians of all jobs. Every rank has one thread.

Afterwards one process reads what each job wrote. A token that it would not have chosen after the
same text ends the benchmark, unless rounding explains it. pip install -e '.[models]' installs
transformers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import check_picture, listed, rotated
from jobs import (
    DTYPES,
    CallTimer,
    add_job_arguments,
    beside,
    busy_processes,
    check_names,
    import_transformers,
    measure_and_report,
    prepare_rank,
    run_job,
)

from ringcomm.arguments import number
from ringcomm.units import readable_seconds
from ringcomm.usage import Parser

ALONE = "one process"
CONTENDERS = (ALONE, "ring", "gloo")
VOCABULARY = 4096
HEAD = 64  # elements of an attention head
KEY_HEADS = 4
WIDTHS = range(HEAD * KEY_HEADS, 4097, HEAD * KEY_HEADS)
WIDTH_PER_LAYER = 64  # as models of some hundred million parameters have it
ROUNDINGS = 4  # of the largest logit, by which a token may be behind the likeliest

Case = tuple[str, int]  # dtype and batch
Counts = dict[tuple[str, tuple[int, ...]], int]  # of a dtype and a text, with its prompt


@dataclass(frozen=True)
class Sample:
    """One generation: seconds of the prompt and of each further token."""

    prefill: float
    token: float
    all_reduces: float  # of a token
    all_reduce: float  # seconds that a token waits in them, the mean of the ranks


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
    all_reduces: float
    all_reduce: float  # seconds of a token
    tokens: int
    likeliest: int  # of them, to one process

    @property
    def share(self) -> float:
        return self.all_reduce / self.token


# ---- The model


def inner_width(hidden: int) -> int:
    """The width of the feed-forward layers, 8/3 of the model's as in Llama."""
    return -(-hidden * 8 // 3 // 128) * 128


def layer_parameters(hidden: int) -> int:
    keys_and_values = 2 * hidden * HEAD * KEY_HEADS
    return 2 * hidden * hidden + keys_and_values + 3 * hidden * inner_width(hidden) + 2 * hidden


def num_parameters(hidden: int, layers: int) -> int:
    return 2 * VOCABULARY * hidden + hidden + layers * layer_parameters(hidden)


def shape_of(parameters: int, hidden: int | None, layers: int | None) -> tuple[int, int]:
    """Width and number of layers: what is given, and else what comes near the parameters."""
    shapes = []
    for width in [hidden] if hidden else WIDTHS:
        rest = parameters - num_parameters(width, 0)
        shapes.append((width, layers or max(1, round(rest / layer_parameters(width)))))
    if layers:
        return min(shapes, key=lambda shape: abs(num_parameters(*shape) - parameters))
    return min(shapes, key=lambda shape: abs(shape[0] / shape[1] - WIDTH_PER_LAYER))


def make_model(hidden: int, layers: int) -> Any:
    """A model whose random weights are always the same, and whose texts do not repeat one token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner_width(hidden),
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=KEY_HEADS,
        initializer_range=hidden**-0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def load(folder: Path, dtype: str) -> Any:
    """The model, divided among the ranks if there is a default group."""
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    divided = {}
    if dist.is_initialized():
        config = DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
        divided = {"distributed_config": config}
    model = LlamaForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], **divided)
    return model.eval()


# ---- A generation


class Timeline:
    """A streamer of `generate`: when each token came, and what all-reduces had taken until then.

    `dist.all_reduce` carries out two all-reduces of each layer. Once for each token, DTensor adds
    the embeddings and gathers the logits; these two do not count.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.seconds: list[float] = []
        self.calls: list[int] = []
        self.all_reduces = CallTimer()

    def put(self, tokens: torch.Tensor) -> None:
        self.times.append(time.perf_counter())
        self.seconds.append(self.all_reduces.seconds)
        self.calls.append(self.all_reduces.calls)

    def end(self) -> None:
        """What `generate` calls after the last token."""

    def sample(self) -> Sample:
        """`generate` gives it the prompt first."""
        asked, first, *_, last = self.times
        further = len(self.times) - 2
        return Sample(
            first - asked,
            (last - first) / further,
            (self.calls[-1] - self.calls[1]) / further,
            (self.seconds[-1] - self.seconds[1]) / further,
        )


def prompts(batch: int, length: int) -> torch.Tensor:
    """Random tokens, int64; a larger batch begins with those of a smaller one."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (batch, length), generator=generator)


def generate(model: Any, batch: int, length: int, tokens: int) -> tuple[torch.Tensor, Sample]:
    """The prompts with the likeliest tokens after them, (batch, length + tokens) int64."""
    asked, timeline = prompts(batch, length), Timeline()
    with torch.inference_mode(), timeline.all_reduces.timing("all_reduce"):
        texts = model.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            streamer=timeline,
        )
    return texts, timeline.sample()


def of_all_ranks(sample: Sample) -> Sample:
    """The slowest rank's times, and the mean of what the ranks wait in all-reduces."""
    if not dist.is_initialized():
        return sample
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, sample)
    return Sample(
        max(each.prefill for each in found),
        max(each.token for each in found),
        sample.all_reduces,
        statistics.mean(each.all_reduce for each in found),
    )


def generate_all(options: argparse.Namespace) -> None:
    """A job's step: rank 0 saves the texts and the sample of each case."""
    if options.backend != ALONE:
        dist.init_process_group(options.backend)
    found = {}
    for dtype in options.dtypes:
        model = load(options.folder, dtype)
        for batch in options.batches:
            generate(model, batch, options.prompt, 2)  # the first calls allocate
            texts, sample = generate(model, batch, options.prompt, options.tokens)
            found[dtype, batch] = texts, of_all_ranks(sample)
    if os.environ["RANK"] == "0":
        torch.save(found, options.result)
    if dist.is_initialized():
        dist.destroy_process_group()


# ---- What one process says of the tokens


class WrongTokensError(RuntimeError):
    """Ranks have generated what one process does not; the text says where."""


def likeliest(model: Any, texts: torch.Tensor, length: int) -> torch.Tensor:
    """Which of the tokens after the prompts the model would choose, (texts, tokens) bool.

    Raises:
        WrongTokensError: a token is behind the likeliest by more than rounding explains.
    """
    with torch.inference_mode():
        logits = model(texts).logits[:, length - 1 : -1]
    chosen = texts[:, length:]
    largest = logits.max(-1).values.float()
    behind = largest - logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).float()
    allowed = ROUNDINGS * torch.finfo(logits.dtype).eps * logits.abs().max().float()
    if (behind > allowed).any():
        text, at = (behind > allowed).nonzero()[0].tolist()
        raise WrongTokensError(
            f"token {at + 1} of text {text} is {chosen[text, at]}; one process would choose "
            f"{logits[text, at].argmax()} after the same {length + at} tokens"
        )
    return behind == 0


def judge(options: argparse.Namespace) -> None:
    """A job's step: saves how many tokens of each text that was generated are the likeliest."""
    jobs = [torch.load(path, weights_only=False) for path in options.folder.glob("*.job")]
    counts: Counts = {}
    for dtype in options.dtypes:
        found = (job[dtype, batch][0].tolist() for job in jobs for batch in options.batches)
        texts = sorted({tuple(text) for each in found for text in each})
        right = likeliest(load(options.folder, dtype), torch.tensor(texts), options.prompt)
        for text, count in zip(texts, right.sum(1).tolist(), strict=True):
            counts[dtype, text] = count
    torch.save(counts, options.result)


# ---- Jobs


def make(options: argparse.Namespace) -> None:
    """A job's step: saves the model."""
    make_model(*options.shape).save_pretrained(options.folder)


STEPS = {"make": make, "generate": generate_all, "judge": judge}


def run_step(options: argparse.Namespace) -> int:
    prepare_rank()
    try:
        STEPS[options.step](options)
    except WrongTokensError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def job(options: argparse.Namespace, step: str, result: Path, backend: str = ALONE) -> None:
    """Raises RanksFailedError if it fails."""
    run_job(options, step, result, backend, 1 if backend == ALONE else options.nproc)


def measure(options: argparse.Namespace) -> list[Row]:
    """Raises RanksFailedError if a job fails."""
    job(options, "make", options.folder)
    with busy_processes(options.busy):
        for r in range(options.rounds):
            for backend in rotated(CONTENDERS, r):
                job(options, "generate", options.folder / f"{backend}-{r}.job", backend)
    result = options.folder / "counts"
    job(options, "judge", result)
    counts = torch.load(result, weights_only=False)
    rows = []
    for case in itertools.product(options.dtypes, options.batches):
        for backend in CONTENDERS:
            paths = options.folder.glob(f"{backend}-*.job")
            found = [torch.load(path, weights_only=False)[case] for path in paths]
            rows.append(row_of(options, case, backend, found, counts))
    return rows


def row_of(
    options: argparse.Namespace,
    case: Case,
    backend: str,
    found: Sequence[tuple[torch.Tensor, Sample]],
    counts: Counts,
) -> Row:
    """The medians of its jobs."""
    dtype, batch = case
    texts = [tuple(text) for each, _ in found for text in each.tolist()]
    prefill, token, all_reduces, all_reduce = map(
        statistics.median, zip(*(astuple(sample) for _, sample in found), strict=True)
    )
    return Row(
        parameters=num_parameters(*options.shape),
        dtype=dtype,
        batch=batch,
        backend=backend,
        world_size=1 if backend == ALONE else options.nproc,
        busy=options.busy,
        prefill=batch * options.prompt / prefill,
        decode=batch / token,
        token=token,
        all_reduces=all_reduces,
        all_reduce=all_reduce,
        tokens=len(texts) * options.tokens,
        likeliest=sum(counts[dtype, text] for text in texts),
    )


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| dtype | batch | backend | prefill, tokens/s | decode, tokens/s | a token "
        "| all-reduces | their time | share | as one process |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        reduces = ["", "", ""]
        if row.all_reduces:
            took = readable_seconds(row.all_reduce)
            reduces = [f"{row.all_reduces:g}", took, f"{row.share:.0%}"]
        lines.append(
            f"| {row.dtype} | {row.batch} | {row.backend} | {row.prefill:.0f} | {row.decode:.1f} "
            f"| {readable_seconds(row.token)} | {' | '.join(reduces)} "
            f"| {row.likeliest} of {row.tokens} |"
        )
    return "\n".join(lines) + "\n"


def draw(path: Path, rows: Sequence[Row]) -> None:
    """What each backend decodes, and how many times as much ring does as gloo."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    cases = list(dict.fromkeys((row.dtype, row.batch) for row in rows))
    width = 0.8 / len(CONTENDERS)
    colors = ("silver", "tab:blue", "tab:orange")
    for n, (backend, color) in enumerate(zip(CONTENDERS, colors, strict=True)):
        decoded = [row.decode for row in rows if row.backend == backend]
        places = [case + (n - 1) * width for case in range(len(cases))]
        axes.bar(places, decoded, width, label=backend, color=color)
    for case, (dtype, batch) in enumerate(cases):
        of = {row.backend: row.decode for row in rows if (row.dtype, row.batch) == (dtype, batch)}
        text = f"{of['ring'] / of['gloo']:.1f} ×"
        axes.annotate(text, (case, of["ring"]), ha="center", va="bottom", fontsize="small")
    texts = [f"{dtype}, batch {batch}" for dtype, batch in cases]
    axes.set_xticks(range(len(cases)), texts, fontsize="small")
    axes.set_ylabel("tokens decoded per second")
    axes.margins(y=0.1)
    axes.legend(fontsize="small")
    axes.set_title(
        f"A model of {rows[0].parameters / 1e6:.0f} million parameters, divided among "
        f"{max(row.world_size for row in rows)} processes; ring as a multiple of gloo",
        fontsize="small",
    )
    figure.savefig(path, dpi=110)


def note(options: argparse.Namespace) -> str:
    hidden, layers = options.shape
    millions = num_parameters(hidden, layers) / 1e6
    return (
        f"A model of {millions:.1f} million parameters, {layers} layers of width {hidden}, among "
        f"{options.nproc} ranks with a thread each{beside(options.busy)}. Prompts have "
        f"{options.prompt} tokens, and {options.tokens} are generated. Medians of {options.rounds} "
        "jobs. A token is one for each text of the batch; the all-reduces are those that "
        "`dist.all_reduce` carries out for it, and their time includes waiting for the other "
        "ranks. The last column says how many tokens one process would have chosen after the same "
        "text. In float32 that is all of them; in bfloat16 others may be as likely up to rounding."
    )


def add_model_arguments(
    parser: argparse.ArgumentParser, fewest_ranks: int = 1, fewest_tokens: int = 3
) -> None:
    """What says which model is divided, and what it generates; and the arguments of jobs."""
    parser.add_argument("--nproc", type=number(fewest_ranks), default=2, help="ranks of a job")
    parser.add_argument(
        "--parameters", type=number(1), default=28, help="millions; layers and width follow"
    )
    parser.add_argument("--layers", type=number(1), help="instead of what follows")
    parser.add_argument("--hidden", type=number(1), help="width, a multiple of 256; the same")
    parser.add_argument("--dtypes", type=listed(str), default=list(DTYPES), help=", ".join(DTYPES))
    parser.add_argument("--batches", type=listed(number(1)), default=[1, 8], help="texts at once")
    parser.add_argument("--prompt", type=number(1), default=32, help="its tokens")
    parser.add_argument("--tokens", type=number(fewest_tokens), default=32, help="to generate")
    add_job_arguments(parser)


def check_model(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets `shape`, or ends the program with a clear error if no such model can be divided."""
    if KEY_HEADS % options.nproc:
        parser.error(f"--nproc must divide {KEY_HEADS}, the model's key heads")
    if (options.hidden or 0) % WIDTHS.step:
        parser.error(f"--hidden must be a multiple of {WIDTHS.step}")
    check_names(parser, "--dtypes", options.dtypes, list(DTYPES))
    options.shape = shape_of(options.parameters * 10**6, options.hidden, options.layers)


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    options = parser.parse_args()
    check_model(parser, options)
    if options.step:
        return run_step(options)
    check_picture(parser, options.output)
    import_transformers(parser, "llama.modeling_llama")
    return measure_and_report(options, measure, Row, note, table, draw)


if __name__ == "__main__":
    raise SystemExit(main())
