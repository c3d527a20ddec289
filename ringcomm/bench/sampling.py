"""Takes the times: of each contender in turn, so that a busy moment of the machine meets all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

import ringcomm
from ringcomm.bench.cases import Case
from ringcomm.bench.contenders import Call, Contender, NotOfferedError
from ringcomm.bench.values import count_wrong, fill


@dataclass
class Result:
    """The samples of one contender in one case, out of place or in place.

    Attributes:
        seconds: the slowest rank's time of each sample, float64.
        ratios: each sample's time over the first contender's, turn by turn.
        wrong: elements, over all ranks and checks.
    """

    seconds: torch.Tensor
    ratios: torch.Tensor
    wrong: int

    @property
    def median(self) -> float:
        return _median(self.seconds)

    @property
    def minimum(self) -> float:
        return float(self.seconds.min())

    @property
    def p99(self) -> float:
        """The smallest sample that 99 % of the samples do not exceed."""
        return float(self.seconds.quantile(0.99, interpolation="higher"))

    @property
    def ratio(self) -> float:
        return _median(self.ratios)


def _median(samples: torch.Tensor) -> float:
    """The median; for an even number, half way between the two in the middle."""
    return float(samples.quantile(0.5))


class _Buffers:
    """The buffers of one case, made at first use: the same for all contenders, in place and not.

    With a set of its own for each, large cases would not fit, and each would find its tensors
    pushed out of the caches by the others'.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._made: dict[tuple[bool, int, int], torch.Tensor] = {}

    def input_and_output(
        self, in_shared_memory: bool, in_place: bool, call: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers of a sample's call of that number."""
        whole = self._one(in_shared_memory, call, 0)
        other = whole if in_place else self._one(in_shared_memory, call, 1)
        return self._case.input_and_output(whole, other)

    def _one(self, in_shared_memory: bool, call: int, index: int) -> torch.Tensor:
        key = in_shared_memory, call, index
        if key not in self._made:
            with ringcomm.shared_memory() if in_shared_memory else nullcontext():
                self._made[key] = self._case.buffer()
        return self._made[key]


class _Entry:
    """One contender, out of place or in place.

    On a CPU each call of a sample has buffers of its own, whose input the rank has just written, as
    in a program. If the input were the same in every call, the rank that reads it from its peer's
    memory would find it in its own cache, and no transfer would be measured.
    """

    def __init__(
        self,
        contender: Contender,
        case: Case,
        buffers: _Buffers,
        in_place: bool,
        graph_launches: int,
    ):
        self.case = case
        number = case.repeats if case.device.type == "cpu" else 1
        pairs = [
            buffers.input_and_output(contender.in_shared_memory, in_place, call)
            for call in range(number)
        ]
        self.inputs = [input for input, _ in pairs]
        self.output = pairs[0][1]
        self.wrong = 0
        calls = [contender.prepare(case, *pair) for pair in pairs]
        self.single_call = calls[0]
        self.check()
        if graph_launches:
            # Several launches in place would sum sums: checks replay a graph of one.
            self.single_call = _captured(calls[0], 1)
            calls = [_captured(calls[0], graph_launches)]
        launches = max(1, graph_launches)
        self.calls = calls * max(1, case.repeats // (len(calls) * launches))
        self.calls_per_sample = len(self.calls) * launches

    def check(self) -> None:
        fill(self.case, self.inputs[0], self.output)
        self.single_call()
        self.wrong += count_wrong(self.case, self.output)

    def sample(self) -> float:
        """Seconds for one call on this rank."""
        for input in self.inputs:
            input.zero_()  # else what is summed in place would grow without bound
        _synchronize(self.case.device)
        ringcomm.barrier()
        start = time.perf_counter()
        for call in self.calls:
            call()
        _synchronize(self.case.device)
        return (time.perf_counter() - start) / self.calls_per_sample


def measure(
    contenders: list[Contender],
    case: Case,
    *,
    samples: int,
    warmups: int,
    checks: int = 1,
    graph_launches: int = 0,
    placements: Sequence[bool] = (False, True),
) -> tuple[dict[tuple[str, bool], Result], dict[str, str]]:
    """Measures a case; all ranks call it, and get the same.

    Args:
        samples: how many of each contender, after `warmups` that do not count.
        checks: calls whose results are compared before the samples; one more is after them.
        graph_launches: calls in a CUDA graph that is replayed, or 0.
        placements: of False, out of place, and True, in place; what cannot be in place is measured
            out of place.

    Returns:
        Results by the contender's name and whether it worked in place, and, by name, why a
        contender was left out.
    """
    entries: dict[tuple[str, bool], _Entry] = {}
    left_out: dict[str, str] = {}
    buffers = _Buffers(case)
    for contender in contenders:
        for in_place in placements if case.collective.in_place else (False,):
            entry, reason = _try(contender, case, buffers, in_place, graph_launches)
            if entry is not None:
                entries[contender.name, in_place] = entry
            else:
                left_out.setdefault(contender.name, reason)
    for entry in entries.values():
        for _ in range(checks - 1):
            entry.check()
    taken = torch.zeros(warmups + samples, len(entries), dtype=torch.float64)
    for turn in taken:
        for index, entry in enumerate(entries.values()):
            turn[index] = entry.sample()
    for entry in entries.values():
        entry.check()
    wrong = torch.tensor([entry.wrong for entry in entries.values()])
    if entries:
        ringcomm.all_reduce(taken, ringcomm.ReduceOp.MAX)
        ringcomm.all_reduce(wrong)
    seconds = taken[warmups:].T
    by_key = dict(zip(entries, seconds, strict=True))
    results = {}
    for index, (name, in_place) in enumerate(entries):
        first = by_key.get((contenders[0].name, in_place), torch.full((samples,), torch.nan))
        results[name, in_place] = Result(seconds[index], seconds[index] / first, int(wrong[index]))
    return results, left_out


def _try(
    contender: Contender, case: Case, buffers: _Buffers, in_place: bool, graph_launches: int
) -> tuple[_Entry | None, str]:
    """The contender, ready and checked once, or why it cannot carry the case out.

    Raises:
        RuntimeError: only some of the ranks could.
    """
    entry, reason = None, ""
    try:
        entry = _Entry(contender, case, buffers, in_place, graph_launches)
    except dist.DistBackendError:
        raise  # it could, and failed
    except (NotOfferedError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
    failed = torch.tensor([int(entry is None)])
    ringcomm.all_reduce(failed)
    if 0 < int(failed) < dist.get_world_size():
        raise RuntimeError(
            f"{contender.name}: {case.collective.name} failed on {int(failed)} of "
            f"{dist.get_world_size()} ranks: {reason or 'another rank'}"
        )
    return entry, reason


def _captured(call: Call, launches: int) -> Call:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    return graph.replay


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
