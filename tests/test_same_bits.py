"""All ranks end with the same bits, whatever is reduced or moved, and however.

The cases are made of tables: collectives and algorithms are ringcomm.plan's, ops and dtypes
torch's, so that a new one is compared, too. A plain run takes a sample in which every pair of
factors appears. With --long every triple appears. Payloads and signs of NaNs may differ. What is
reduced is compared with a reference in float64, too, within what rounding allows; what is moved,
with the sender's bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from covering import Case, covering, parts_of
from faults.record import Record
from ranks import Rank, on_processes
from torch.distributed import ReduceOp
from values import COMPLEX, FLOATS, MOVED, REDUCED

import ringcomm
from ringcomm.plan.algorithms import ALGORITHMS

TIMEOUT = timedelta(seconds=60)
REDUCING = ["all_reduce", "reduce_scatter", "reduce"]

# ---- The tables

OPS = list(ReduceOp.RedOpType.__members__)
COMPLEX_OPS = ["SUM", "AVG", "PREMUL_SUM"]

# Ranks of each host.
PLACEMENTS = [
    (2,),
    (3,),
    (4,),
    (1, 1),
    (2, 1),
    (1, 2),
    (2, 2),
    (3, 1),
    (1, 1, 1),
    (1, 1, 1, 1),
]

# Bytes of a buffer of n ranks on both sides of which something is done in another way.
LIMITS: dict[str, Callable[[int], int]] = {
    "a line of an announcement": lambda n: 32,
    "small between hosts by ucx": lambda n: 256,
    "small between hosts by gloo": lambda n: 1 << 10,
    "payloads of two lines": lambda n: 2 << 10,
    "payloads in rotation": lambda n: 8 << 10,
    "payloads in rotation, each": lambda n: n << 13,
    "small": lambda n: (64 if n == 2 else 32) << 10,
    "small, each": lambda n: n * (64 if n == 2 else 32) << 10,
    "a slice": lambda n: 256 << 10,
    "at once": lambda n: 512 << 10,
    "at once, each": lambda n: n << 19,
    "an outbox": lambda n: 1 << 20,
    "payloads of two ranks": lambda n: 2 << 20,
}
SIDES = [-1, 0, 1]  # elements more than that
SPECIAL = "few"
FEW = [0, 1, 5]

LAYOUTS = [
    "contiguous",
    "unaligned",
    "strided",
    "transposed",
    "shared",
    "in place",
    "shared, in place",
]
PATHS = ["direct", "dist", "direct async", "dist async", "coalesced", "sparse"]
FLUSHES = ["no rank", "rank 1"]  # denormal numbers

# Of torch's dtypes, those that no tensor here can have.
NOT_MADE = "Torch makes no tensor of this dtype from bytes."


def torchs_dtypes() -> list[torch.dtype]:
    return sorted({x for x in vars(torch).values() if isinstance(x, torch.dtype)}, key=str)


def is_made(dtype: torch.dtype) -> bool:
    try:
        made = torch.zeros(4 * dtype.itemsize, dtype=torch.uint8).view(dtype).clone()
        return len(made.view(torch.uint8)) == 4 * dtype.itemsize
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False


MADE = [dtype for dtype in torchs_dtypes() if is_made(dtype)]
REDUCED_COMPLEX = [dtype for dtype in MADE if dtype.is_complex]  # as pairs


def is_copied(dtype: torch.dtype) -> bool:
    """Whether torch copies elements that lie apart; else no backend can send them."""
    made = torch.zeros(64 * 64 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    try:
        made[::2].contiguous()
        made.view(64, 64).t().contiguous()
    except (RuntimeError, NotImplementedError):
        return False
    return True


NOT_COPIED = [dtype for dtype in MADE if not is_copied(dtype)]


def algorithms() -> list[tuple[str, str]]:
    return [
        (collective, name)
        for collective, table in ALGORITHMS.items()
        if collective != "barrier"
        for name in ["auto", *table]
    ]


def ops_of(dtype: torch.dtype) -> list[str]:
    """From the ops that torch has; which of them are defined is asked of the library."""
    if dtype in REDUCED_COMPLEX:
        return COMPLEX_OPS
    bitwise = {"BAND", "BOR", "BXOR"}
    if dtype in FLOATS:
        return [op for op in OPS if op not in bitwise]
    without = {"PREMUL_SUM", "AVG"} if dtype == torch.bool else {"PREMUL_SUM"}
    return [op for op in OPS if op not in without]


NO_OP = "-"


def factors() -> dict[str, Sequence[Any]]:
    return {
        "placement": PLACEMENTS,
        "algorithm": algorithms(),
        "dtype": MADE,
        "op": [NO_OP, *OPS],
        "limit": [SPECIAL, *LIMITS],
        "side": SIDES,
        "layout": LAYOUTS,
        "path": PATHS,
        "flush": FLUSHES,
    }


def fits(first: str, x: Any, second: str, y: Any) -> bool:
    """The factors are given in the order of the table, or in the other."""
    by_name = {first: x, second: y}
    if "algorithm" in by_name:
        collective = by_name["algorithm"][0]
        reduces = collective in REDUCING
        if "op" in by_name and (by_name["op"] != NO_OP) != reduces:
            return False
        if "dtype" in by_name and reduces and by_name["dtype"] not in [*REDUCED, *REDUCED_COMPLEX]:
            return False
        if "path" in by_name and by_name["path"] not in paths_of(collective):
            return False
        if "layout" in by_name and "in place" in by_name["layout"]:
            return collective in ("reduce_scatter", "all_gather")
    if "op" in by_name and "dtype" in by_name and by_name["op"] != NO_OP:
        dtype = by_name["dtype"]
        return dtype in [*REDUCED, *REDUCED_COMPLEX] and by_name["op"] in ops_of(dtype)
    if by_name.get("dtype") in NOT_COPIED and by_name.get("layout") in ("strided", "transposed"):
        return False
    if by_name.get("path") == "sparse":
        if by_name.get("op", "SUM") != "SUM":
            return False
        if by_name.get("dtype", torch.float32) not in (torch.float64, torch.float32, torch.int64):
            return False
        return by_name.get("layout", "contiguous") == "contiguous"
    return True


def paths_of(collective: str) -> list[str]:
    if collective == "all_reduce":
        return PATHS
    if collective in ("reduce_scatter", "all_gather"):
        return [path for path in PATHS if path != "sparse"]
    return [path for path in PATHS if path not in ("coalesced", "sparse")]


def test_every_dtype_of_torch_is_compared() -> None:
    """And those that this library can reduce are those that the tests reduce."""
    missing = {*MOVED, *COMPLEX} - set(MADE)
    assert not missing, f"{NOT_MADE} {missing}"
    refused = {dtype for dtype in MADE if is_refused(dtype)}
    assert refused == set(MADE) - {*REDUCED, *REDUCED_COMPLEX}


def is_refused(dtype: torch.dtype) -> bool:
    store = dist.HashStore()
    group = ringcomm.ProcessGroupRing(store, 0, 1)
    tensor = torch.zeros(4 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    try:
        group.allreduce([tensor]).wait()
    except (ValueError, NotImplementedError):
        return True
    return False


# ---- Inputs: random bits, so that all exponents appear, and what is special


def given(rank: int, count: int, case: Case, part: int = 0) -> torch.Tensor:
    dtype: torch.dtype = case["dtype"]
    seed = [rank, count, part, *str(dtype).encode()]
    rng = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, count).astype(bool))
    raw = torch.frombuffer(bytearray(rng.bytes(max(count, 1) * dtype.itemsize)), dtype=torch.uint8)
    raw = raw[: count * dtype.itemsize]
    if case["op"] == NO_OP:
        return raw.view(dtype).clone()
    if dtype.is_complex:
        real = torch.empty(0, dtype=dtype).real.dtype
        return _reals(rng, 2 * count, raw, real).view(torch.uint8).view(dtype)
    return _reals(rng, count, raw, dtype) if dtype in FLOATS else raw.view(dtype).clone()


_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _reals(
    rng: np.random.Generator, count: int, raw: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """A third of any exponent; half of similar size, whose sums are rounded; and special ones."""
    integer = _AS_INTEGER[dtype.itemsize]
    moderate = torch.from_numpy(rng.standard_normal(count)).to(dtype).view(integer)
    special = _specials(dtype).view(integer)[torch.from_numpy(rng.integers(0, 12, count))]
    kind = torch.from_numpy(rng.integers(0, 12, count))
    bits = torch.where(kind < 6, moderate, torch.where(kind < 8, special, raw.view(integer)))
    return bits.view(dtype)


def _specials(dtype: torch.dtype) -> torch.Tensor:
    """Twelve of them."""
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal
    least = tiny * limits.eps
    numbers = [0.0, -0.0, 0.0, -0.0, least, -least, tiny / 2, -tiny / 2, limits.max, float("nan")]
    inf = float("inf") if dtype != torch.float8_e4m3fn else limits.max
    return torch.tensor([*numbers, inf, -inf], dtype=torch.float64).to(dtype)


def op_of(rank: int, op: str) -> ReduceOp:
    """Every rank scales by a factor of its own."""
    if op == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(factor_of(rank))
    return getattr(ReduceOp, op)


def factor_of(rank: int) -> float:
    return [0.3, 1.7, -0.9, 0.123][rank % 4]


def count_of(case: Case) -> int:
    """Elements of the buffer that the collective's limit is about."""
    n, size = sum(case["placement"]), case["dtype"].itemsize
    if case["limit"] == SPECIAL:
        return FEW[case["side"] + 1]
    return max(0, LIMITS[case["limit"]](n) // size + case["side"])


# ---- A collective, by any path and in any layout


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    count = len(values)
    if layout == "unaligned":
        return _like(count + 1, values)[1:].copy_(values)
    if layout == "strided":
        return _like(2 * count, values)[::2].copy_(values)
    if layout == "transposed" and count % 2 == 0:
        return _like(count, values).view(2, -1).t().copy_(values.view(-1, 2))
    if layout.startswith("shared"):
        return ringcomm.empty(count, dtype=values.dtype).copy_(values)
    return values.clone()


def _like(count: int, values: torch.Tensor) -> torch.Tensor:
    return torch.zeros(count * values.dtype.itemsize, dtype=torch.uint8).view(values.dtype)


class Call:
    """Of one rank: what it is given, what comes out, and what this is to be."""

    def __init__(self, case: Case, rank: int, group: Any) -> None:
        self.case, self.rank, self.group = case, rank, group
        self.n = sum(case["placement"])
        self.root = self.n - 1
        self.collective = case["algorithm"][0]
        self.is_direct = case["path"].startswith("direct")
        self.library: Any = ringcomm if self.is_direct else dist
        self.op = op_of(rank, case["op"]) if case["op"] != NO_OP else None

    def given(self, count: int, rank: int | None = None, part: int = 0) -> torch.Tensor:
        return given(self.rank if rank is None else rank, count, self.case, part)

    def everybodys(self, count: int) -> list[torch.Tensor]:
        return [self.given(count, rank) for rank in range(self.n)]

    def laid(self, values: torch.Tensor) -> torch.Tensor:
        return laid_out(values, self.case["layout"])

    def output(self, count: int) -> torch.Tensor:
        return self.laid(_like(count, self.given(0)))

    def finish(self, name: str, *args: Any, **kwargs: Any) -> None:
        if self.case["path"] == "coalesced":
            with dist._coalescing_manager(group=self.group):
                getattr(dist, name)(*args, group=self.group, **kwargs)
            return
        is_async = self.case["path"].endswith("async")
        work = getattr(self.library, name)(*args, group=self.group, async_op=is_async, **kwargs)
        if is_async:
            work.wait()

    def run(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | Reference | None, bool]]:
        """(what it is, what has come out, what it should be, whether all ranks have the same)."""
        yield from getattr(self, self.collective)(count_of(self.case))

    def all_reduce(self, count: int) -> Any:
        reference = Reference(self, self.everybodys(count))
        tensor = self.laid(self.given(count))
        if self.case["path"] == "sparse":
            indices = torch.arange(count)[None]
            sparse = torch.sparse_coo_tensor(indices, tensor, (count,), check_invariants=False)
            dist.all_reduce(sparse, group=self.group)
            yield "sum", sparse.coalesce().values(), reference, True
            return
        if self.case["path"] == "coalesced":
            second = self.laid(self.given(count // 3, part=1))
            dist.all_reduce_coalesced([tensor, second], self.op, group=self.group)
            yield "second", second, None, True
        else:
            self.finish("all_reduce", tensor, op=self.op)
        yield "result", tensor, reference, True

    def reduce(self, count: int) -> Any:
        tensor = self.laid(self.given(count))
        self.finish("reduce", tensor, self.root, op=self.op)
        if self.rank == self.root:
            yield "result", tensor, Reference(self, self.everybodys(count)), False
        else:
            yield "left alone", tensor, self.given(count), False

    def reduce_scatter(self, count: int) -> Any:
        own, count = self.rank, count // self.n
        everybodys = self.everybodys(self.n * count)
        tensor = self.laid(everybodys[own])
        is_in_place = "in place" in self.case["layout"]
        output = tensor.chunk(self.n)[own] if is_in_place and count else self.output(count)
        self.finish("reduce_scatter_tensor", output, tensor, op=self.op)
        parts = [each[own * count : (own + 1) * count] for each in everybodys]
        yield "result", output, Reference(self, parts), False

    def all_gather(self, count: int) -> Any:
        output = self.output(self.n * count)
        tensor = self.given(count)
        if "in place" in self.case["layout"] and count:
            tensor = output.chunk(self.n)[self.rank].copy_(tensor)
        else:
            tensor = self.laid(tensor)
        self.finish("all_gather_into_tensor", output, tensor)
        yield "result", output, torch.cat(self._raw(self.everybodys(count))), True

    def broadcast(self, count: int) -> Any:
        tensor = self.laid(self.given(count))
        self.finish("broadcast", tensor, self.root)
        yield "result", tensor, self.given(count, self.root), True

    def gather(self, count: int) -> Any:
        outputs = [self.output(count) for _ in range(self.n)] if self.rank == self.root else None
        self.finish("gather", self.laid(self.given(count)), outputs, self.root)
        for sender, output in enumerate(outputs or []):
            yield f"of rank {sender}", output, self.given(count, sender), False

    def scatter(self, count: int) -> Any:
        inputs = None
        if self.rank == self.root:
            inputs = [self.laid(self.given(count, part=r)) for r in range(self.n)]
        output = self.output(count)
        self.finish("scatter", output, inputs, self.root)
        yield "result", output, self.given(count, self.root, self.rank), False

    def all_to_all(self, count: int) -> Any:
        parts = [self.given(count, part=r) for r in range(self.n)]
        tensor, output = (
            self.laid(torch.cat(self._raw(parts)).view(parts[0].dtype)),
            self.output(self.n * count),
        )
        if tensor.dim() == 2:
            tensor, output = tensor.reshape(-1), output.reshape(-1)
        self.finish("all_to_all_single", output, tensor)
        wanted = [self.given(count, r, self.rank) for r in range(self.n)]
        yield "result", output, torch.cat(self._raw(wanted)), False

    @staticmethod
    def _raw(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Torch cannot concatenate all dtypes."""
        return [tensor.view(torch.uint8) for tensor in tensors]


# ---- References: a value computed in float64, and by how much a result may be beside it


class Reference:
    def __init__(self, call: Call, inputs: Sequence[torch.Tensor]) -> None:
        self.case, self.inputs = call.case, inputs

    def complaint(self, result: torch.Tensor) -> str:
        inputs, case = list(self.inputs), self.case
        if result.numel() == 0:
            return ""
        if result.dtype.is_complex:
            result, inputs = torch.view_as_real(result), [torch.view_as_real(x) for x in inputs]
        wrong = (_wrong_float if result.dtype in FLOATS else _wrong_integer)(
            result.reshape(-1), [x.reshape(-1) for x in inputs], case
        )
        where = wrong.nonzero().flatten().tolist()
        if not where:
            return ""
        at = where[0]
        of = [x.reshape(-1)[at].item() for x in inputs]
        got = result.reshape(-1)[at].item()
        return f"{len(where)} of {len(wrong)} are wrong, element {at} of {of} is {got}"


def _wrong_float(result: torch.Tensor, inputs: list[torch.Tensor], case: Case) -> torch.Tensor:
    op, n, dtype = case["op"], len(inputs), result.dtype
    limits = torch.finfo(dtype)
    x = torch.stack([each.double() for each in inputs])
    got = result.double()
    if op in ("MIN", "MAX"):
        exact = x.amin(0) if op == "MIN" else x.amax(0)
        flushed = (exact.abs() < limits.smallest_normal) & (case["flush"] != "no rank")
        return ~((got == exact) | (got.isnan() & exact.isnan()) | flushed)
    if op == "PREMUL_SUM":
        x = x * torch.tensor([factor_of(r) for r in range(n)], dtype=torch.float64)[:, None]
    tiny = limits.smallest_normal * (n + 1)
    if op == "PRODUCT":
        exact = x.prod(0)
        bound = exact.abs() * limits.eps * (n + 1) + limits.smallest_normal * limits.eps
        least, most = x.abs().clamp(max=1).prod(0), x.abs().clamp(min=1).prod(0)
        in_range = (most < limits.max / 4) & (least > 4 * tiny)
    else:
        exact, total = x.sum(0), x.abs().sum(0)
        bound = total * limits.eps * (n + 1) + tiny * (
            limits.eps if case["flush"] == "no rank" else 1
        )
        in_range = total < limits.max / 4
        if op == "AVG":
            exact, bound = exact / n, bound / n + tiny * limits.eps
    is_beside = in_range & ~((got - exact).abs() <= bound)
    return is_beside | (x.isnan().any(0) & ~got.isnan())


def _wrong_integer(result: torch.Tensor, inputs: list[torch.Tensor], case: Case) -> torch.Tensor:
    op, n = case["op"], len(inputs)
    x = np.stack([each.numpy() for each in inputs])
    with np.errstate(all="ignore"):
        if op == "AVG":
            quotients, rests = x // n, x % n  # of floors; what is left is small
            total = quotients.sum(0, dtype=np.int64), rests.sum(0, dtype=np.int64)
            floor, rest = total[0] + total[1] // n, total[1] % n
            expected = np.where((floor < 0) & (rest > 0), floor + 1, floor)
        elif op == "SUM":
            expected = x.any(0) if x.dtype == bool else x.sum(0, dtype=x.dtype)
        elif op == "PRODUCT":
            expected = x.all(0) if x.dtype == bool else x.prod(0, dtype=x.dtype)
        else:
            of_numpy = {"MIN": "minimum", "MAX": "maximum", "BAND": "bitwise_and"}
            of_numpy |= {"BOR": "bitwise_or", "BXOR": "bitwise_xor"}
            expected = getattr(np, of_numpy[op]).reduce(x, 0)
    return torch.from_numpy(result.numpy() != expected.astype(x.dtype))


# ---- Comparing


def raw(tensor: torch.Tensor) -> torch.Tensor:
    # One element is contiguous whatever its stride, and then not to be viewed as bytes.
    return _like(tensor.numel(), tensor).copy_(tensor.reshape(-1)).view(torch.uint8)


def without_payloads(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    if tensor.dtype not in FLOATS:
        return tensor
    tensor = raw(tensor).view(tensor.dtype)
    integers = tensor.view(_AS_INTEGER[tensor.dtype.itemsize])
    nan = torch.tensor([float("nan")]).to(tensor.dtype).view(integers.dtype)
    return (
        torch.where(tensor.float().isnan() | tensor.isnan(), nan, integers)
        if tensor.numel()
        else integers
    )


def differing(tensor: torch.Tensor, n: int, itemsize: int) -> str:
    """How the ranks' bytes differ, if they do."""
    own = raw(without_payloads(tensor))
    digest = hashlib.blake2b(own.numpy().tobytes(), digest_size=16).digest()
    mine = torch.tensor(list(digest), dtype=torch.uint8)
    digests = torch.empty(n, 16, dtype=torch.uint8)
    dist.all_gather_into_tensor(digests, mine)
    if bool((digests == digests[0]).all()):
        return ""
    everybodys = torch.empty(n * len(own), dtype=torch.uint8)
    dist.all_gather_into_tensor(everybodys, own)
    rows = everybodys.view(n, -1, itemsize)
    apart = (rows != rows[0]).any(0).any(1).nonzero().flatten().tolist()
    at = apart[0]
    shown = ", ".join(bytes(rows[r, at].tolist())[::-1].hex() for r in range(n))
    return f"{len(apart)} of {rows.shape[1]} differ between ranks, element {at} is {shown}"


def described(case: Case) -> str:
    values = dict(case, algorithm=" by ".join(case["algorithm"]), dtype=str(case["dtype"])[6:])
    return ", ".join(f"{name} {value}" for name, value in values.items() if value != NO_OP)


def compare(rank: Rank, cases: list[Case], links: str) -> list[str]:
    """The complaints of this rank about cases of one placement."""
    hosts = cases[0]["placement"]
    host_of = [host for host, size in enumerate(hosts) for _ in range(size)]
    if len(hosts) > 1:
        os.environ.update(RINGCOMM_HOSTID=f"host{host_of[rank.rank]}", RINGCOMM_LINKS=links)
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size, timeout=TIMEOUT
    )
    complaints: list[str] = []
    for selected in selections():
        chosen = [case for case in cases if selected[case["algorithm"][0]] == case["algorithm"][1]]
        group: Any = ringcomm.new_group(
            algorithm=selected, ranks_per_host=list(hosts), timeout=TIMEOUT
        )
        for case in chosen:
            cases.remove(case)  # others have this collective by this algorithm, too
            complaints += compare_case(case, rank.rank, group)
        dist.destroy_process_group(group)
    assert not cases
    dist.destroy_process_group()
    return complaints


def selections() -> list[dict[str, str]]:
    """Algorithms of collectives; in turn each has all of its own."""
    names = {c: ["auto", *table] for c, table in ALGORITHMS.items() if c != "barrier"}
    longest = max(map(len, names.values()))
    return [{c: each[i % len(each)] for c, each in names.items()} for i in range(longest)]


def compare_case(case: Case, rank: int, group: Any) -> Iterator[str]:
    print(described(case), flush=True)  # the last line is what a crash was in
    flushes = case["flush"] == f"rank {rank}"
    call = Call(case, rank, group)
    results = []
    runs = call.run()
    torch.set_flush_denormal(flushes)
    try:
        results = list(runs)
    finally:
        torch.set_flush_denormal(False)
    for name, result, wanted, is_same in results:
        complaint = ""
        if is_same:
            complaint = differing(result, call.n, _itemsize(case))
        if not complaint and isinstance(wanted, Reference):
            complaint = wanted.complaint(result)
        elif not complaint and wanted is not None and not torch.equal(raw(result), raw(wanted)):
            complaint = "what has come is not what was sent"
        if complaint:
            yield f"rank {rank}, {described(case)}: {name}: {complaint}"


def _itemsize(case: Case) -> int:
    dtype = case["dtype"]
    return dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize


SHOWN = 60


def check(cases: list[Case], links: str = "auto", timeout: float = 120) -> None:
    by_placement = defaultdict(list)
    for case in cases:
        by_placement[case["placement"]].append(case)
    complaints: list[str] = []
    for placement, chosen in by_placement.items():
        chosen.sort(key=lambda case: case["algorithm"])
        results = on_processes(compare, sum(placement), chosen, links, timeout=timeout)
        complaints += itertools.chain.from_iterable(results)
    print(f"{len(cases)} combinations compared, {len(by_placement)} placements, links {links}")
    failed = {line.split(": ")[0].split(", ", 1)[1] for line in complaints}
    shown = "\n".join(complaints[:SHOWN])
    assert not complaints, f"{len(failed)} of {len(cases)} combinations are wrong:\n{shown}"


def test_sample_has_every_pair() -> None:
    cases = sample()
    found = set().union(*(parts_of(case) for case in cases))
    for name, values in factors().items():
        for value in values:
            assert any((name, value) in pair for pair in found), f"no case has {name} {value}"


def sample() -> list[Case]:
    return covering(factors(), fits)


def test_same_bits() -> None:
    check(sample())


def has_ucx() -> bool:
    ringcomm.links.wanted()  # which says where it is
    return "ucx" in ringcomm._C.links.describe("auto").lower()


@pytest.fixture(scope="module")
def triples(request: pytest.FixtureRequest) -> list[Case]:
    if not request.config.getoption("long"):
        pytest.skip("it takes long: --long")
    return covering(factors(), fits, strength=3)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("links", ["gloo", "ucx"])
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_every_triple(placement: tuple[int, ...], links: str, triples: list[Case]) -> None:
    if links == "ucx" and (len(placement) == 1 or not has_ucx()):
        pytest.skip("the placement has no links, or there is no UCX here")
    chosen = [case for case in triples if case["placement"] == placement]
    check(chosen, links, timeout=3600)
    sizes = "+".join(map(str, placement))
    row = f"one host of {sizes}" if len(placement) == 1 else f"hosts of {sizes}, {links}"
    Record("same_bits", long=True).write_row(row, combinations=len(chosen), different=0)
