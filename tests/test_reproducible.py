"""With reproducible="ranks", the bits of sums depend on the ranks' values and their number alone.

Random cases, of any collective that adds, length, offset, layout of memory, dtype, op, path,
algorithm, hosts and numbers of ranks, are compared bit for bit with sums that NumPy adds here in
the promised order: neighbouring ranks first, then neighbouring pairs. Payloads and signs of NaNs
may differ. A plain run has 300 cases, and one with --long 10,000.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from test_same_bits import (
    LAYOUTS,
    LIMITS,
    SIDES,
    SPECIAL,
    TIMEOUT,
    Call,
    Reference,
    described,
    factor_of,
    fits,
    without_payloads,
)
from torch.distributed.device_mesh import init_device_mesh
from values import FLOATS

import ringcomm
from ringcomm.options import Options

PLACEMENTS = [(2,), (3,), (4,), (5,), (7,), (8,), (12,), (17,), (1, 1), (2, 1), (2, 2), (3, 2)]
PLACEMENTS += [(1, 4), (1, 1, 1), (1, 2, 3), (4, 4), (2, 2, 2, 2), (2, 2, 1, 2)]
ALGORITHMS = {
    "all_reduce": ["auto", "direct", "one_shot"],
    "reduce_scatter": ["auto", "direct"],
    "reduce": ["auto", "direct"],
}
DTYPES = [*FLOATS, torch.complex64, torch.complex128]
FACTORS: dict[str, list[Any]] = {
    "placement": PLACEMENTS,
    "algorithm": [(name, each) for name, algorithms in ALGORITHMS.items() for each in algorithms],
    "dtype": DTYPES,
    "op": ["SUM", "AVG", "PRODUCT", "PREMUL_SUM"],
    "limit": [SPECIAL, *LIMITS],
    "side": SIDES,
    "layout": LAYOUTS,
    "path": ["direct", "dist", "direct async", "dist async", "coalesced", "sparse"],
    "flush": ["no rank"],
}
MOST_NBYTES = 4 << 20  # of all ranks together
_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_one(case: dict[str, Any]) -> bool:
    n = sum(case["placement"])
    if case["limit"] != SPECIAL and n * LIMITS[case["limit"]](n) > MOST_NBYTES:
        return False
    if case["dtype"].is_complex and case["op"] == "PRODUCT":
        return False
    names = list(case)
    return all(
        fits(first, case[first], second, case[second])
        for i, first in enumerate(names)
        for second in names[i + 1 :]
        if "flush" not in (first, second)
    )


def sample(count: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    cases: list[dict[str, Any]] = []
    while len(cases) < count:
        case = {name: rng.choice(values) for name, values in FACTORS.items()}
        if is_one(case):
            cases.append(case)
    return cases


# ---- The reference


def in_pairs(values: list[np.ndarray], op: str) -> np.ndarray:
    combine = np.multiply if op == "PRODUCT" else np.add
    while len(values) > 1:
        paired = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = paired + values[len(paired) * 2 :]
    return values[0]


def expected(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """What is promised, of inputs of one dtype by rank."""
    dtype = inputs[0].dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values = [each.to(wide) for each in inputs]
    with np.errstate(all="ignore"):
        if op == "PREMUL_SUM":
            factors = [torch.tensor(factor_of(rank), dtype=wide) for rank in range(len(inputs))]
            values = [(x * f).to(dtype).to(wide) for x, f in zip(values, factors, strict=True)]
        total = in_pairs([each.numpy() for each in values], op)
        if op == "AVG":
            total = total / total.dtype.type(len(inputs))
    return torch.from_numpy(np.asarray(total)).to(dtype)


def complaint_of(result: torch.Tensor, reference: Reference, op: str) -> str:
    inputs = list(reference.inputs)
    if result.dtype.is_complex:
        result, inputs = torch.view_as_real(result), [torch.view_as_real(x) for x in inputs]
    wanted = expected([x.reshape(-1) for x in inputs], op)
    integer = _AS_INTEGER[wanted.dtype.itemsize]
    got = without_payloads(result.reshape(-1)).view(integer)
    wrong = (got != without_payloads(wanted).view(integer)).nonzero().flatten().tolist()
    if not wrong:
        return ""
    at = wrong[0]
    of = [x.reshape(-1)[at].item() for x in inputs]
    return (
        f"{len(wrong)} of {len(wanted)} differ from the promised sum, element {at} of {of} is "
        f"{result.reshape(-1)[at].item()} and not {wanted[at].item()}"
    )


# ---- The comparison


def compare(rank: Rank, cases: list[dict[str, Any]]) -> list[str]:
    hosts = cases[0]["placement"]
    host_of = [host for host, size in enumerate(hosts) for _ in range(size)]
    if len(hosts) > 1:
        os.environ.update(RINGCOMM_HOSTID=f"host{host_of[rank.rank]}", RINGCOMM_LINKS="gloo")
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size, timeout=TIMEOUT
    )
    complaints: list[str] = []
    groups: dict[str, Any] = {}
    for case in cases:
        print(described(case), flush=True)  # the last line is what a crash was in
        collective, algorithm = case["algorithm"]
        key = f"{collective}={algorithm}"
        if key not in groups:
            groups[key] = ringcomm.new_group(
                algorithm=key, reproducible="ranks", ranks_per_host=list(hosts), timeout=TIMEOUT
            )
        for name, result, reference, _ in Call(case, rank.rank, groups[key]).run():
            if not isinstance(reference, Reference) or result.numel() == 0:
                continue
            if complaint := complaint_of(result, reference, case["op"]):
                complaints.append(f"rank {rank.rank}, {described(case)}: {name}: {complaint}")
    dist.destroy_process_group()
    return complaints


@pytest.mark.timeout(14_400)  # of the long form
def test_sums_are_the_promised_ones(request: pytest.FixtureRequest) -> None:
    by_placement = defaultdict(list)
    for case in sample(10_000 if request.config.getoption("long") else 300):
        by_placement[case["placement"]].append(case)
    complaints = [
        line
        for placement, cases in by_placement.items()
        for result in on_processes(compare, sum(placement), cases, timeout=3600)
        for line in result
    ]
    assert not complaints, f"{len(complaints)} complaints:\n" + "\n".join(complaints[:20])


def adds_sparse_zeros(rank: Rank) -> list[list[float]]:
    """Indices 0 and 1 are every rank's, 2 is one rank's. All values are -0, but for one of 1."""
    ringcomm.init_process_group(
        store=rank.store,
        rank=rank.rank,
        world_size=rank.world_size,
        pg_options=Options(reproducible="ranks"),
    )
    indices = [[0, 1, 2]] if rank.rank == 0 else [[0, 1]]
    results = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = torch.full((len(indices[0]),), -0.0, dtype=dtype)
        values[1] = 0.0 if rank.rank == 0 else -0.0
        tensor = torch.sparse_coo_tensor(indices, values, (4,))
        ringcomm.all_reduce(tensor)
        results.append(torch.copysign(torch.ones(3), tensor.coalesce().values()).tolist())
    dist.destroy_process_group()
    return results


def test_sparse_sums_keep_negative_zeros() -> None:
    assert on_processes(adds_sparse_zeros, 5) == [[[-1.0, 1.0, -1.0]] * 3] * 5


# ---- What is asked for

# The sum is 2^24 from left to right, and 2^24 + 2 in pairs.
VALUES = [2.0**24, 1.0, 1.0, 1.0]


def is_reproducible(group: Any) -> bool:
    """Whether the ring is refused, which RINGCOMM_ALGORITHM or an option has selected."""
    try:
        ringcomm.all_reduce(torch.ones(100_000), group=group)
    except ringcomm.plan.PlanError:
        return True
    return False


def asks(rank: Rank) -> list[bool]:
    os.environ.update(RINGCOMM_REPRODUCIBLE="ranks", RINGCOMM_ALGORITHM="all_reduce=ring")
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    groups = (None, ringcomm.new_group(), ringcomm.new_group(reproducible="off"))
    results = [is_reproducible(group) for group in groups]
    dist.destroy_process_group()
    return results


def test_environment_is_for_groups_without_options() -> None:
    assert on_processes(asks, 4) == [[True, True, False]] * 4


def asks_in_later_groups(rank: Rank) -> list[bool]:
    os.environ["RINGCOMM_ALGORITHM"] = "all_reduce=ring"
    dist.init_process_group(
        "ring",
        store=rank.store,
        rank=rank.rank,
        world_size=rank.world_size,
        pg_options=Options(reproducible="ranks"),
    )
    if rank.rank == 4:
        return []
    groups = (ringcomm.shrink(exclude=[4]), ringcomm.new_group())
    results = [is_reproducible(group) for group in groups]
    dist.destroy_process_group()
    return results


def test_argument_is_for_one_group_and_what_it_shrinks_to() -> None:
    assert on_processes(asks_in_later_groups, 5) == [[True, False]] * 4 + [[]]


def asks_in_a_mesh(rank: Rank) -> bool:
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    chosen = ("ring", Options("all_reduce=ring", reproducible="ranks"))
    mesh = init_device_mesh(
        "cpu", (1, 4), mesh_dim_names=("replicas", "shards"), backend_override={"shards": chosen}
    )
    result = is_reproducible(mesh.get_group("shards"))
    dist.destroy_process_group()
    return result


def test_a_dimension_of_a_mesh_takes_options() -> None:
    assert on_processes(asks_in_a_mesh, 4) == [True] * 4


def raises(rank: Rank) -> list[str]:
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    by_ring = ringcomm.new_group(algorithm="ring", reproducible="ranks")
    by_doubling = ringcomm.new_group(algorithm="recursive_doubling", reproducible="ranks")
    apart = ringcomm.new_group(reproducible="ranks" if rank.rank == 0 else "off")
    errors = []
    reduce = partial(ringcomm.reduce, dst=0)
    for group, call, dtype in [
        (by_ring, ringcomm.all_reduce, torch.float32),
        (by_ring, ringcomm.all_reduce, torch.int32),
        (by_doubling, ringcomm.all_reduce, torch.float32),
        (by_doubling, ringcomm.all_reduce, torch.bfloat16),
        (apart, ringcomm.all_reduce, torch.float32),  # is in pairs without being asked for
        (apart, reduce, torch.float32),
    ]:
        try:
            call(torch.ones(100_000, dtype=dtype), group=group)
            errors.append("")
        except (RuntimeError, ringcomm.plan.PlanError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()
    return errors


def test_other_sums_are_refused() -> None:
    for ring, integers, doubling, narrow, alike, apart in on_processes(raises, 4):
        assert ring.startswith('PlanError: all_reduce by the plan "ring" on 4 ranks')
        assert "in chunk 0, and not with (rank 0 + rank 1) + (rank 2 + rank 3)" in ring
        assert integers == doubling == alike == ""
        assert 'the plan "recursive_doubling"' in narrow
        assert "adds floats of 16 and 8 bits in one step, which rounds once, and rank 0" in narrow
        assert "another algorithm (are algorithm= and reproducible=, or RINGCOMM_ALG" in apart


def adds_on_other_hosts(rank: Rank) -> float:
    os.environ.update(RINGCOMM_HOSTID=f"host{rank.rank // 2}", RINGCOMM_LINKS="gloo")
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    group = ringcomm.new_group(reproducible="ranks", ranks_per_host=[3, 1])
    tensor = torch.full((300_000,), VALUES[rank.rank])
    ringcomm.all_reduce(tensor, group=group)
    dist.destroy_process_group()
    return tensor.unique().item()


def test_a_user_may_name_other_hosts() -> None:
    """The ranks are on two hosts of two. Plans of two levels are for hosts of three and one."""
    assert on_processes(adds_on_other_hosts, 4) == [2.0**24 + 2] * 4


def adds_without_asking(rank: Rank) -> list[float]:
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    results = []
    for count in (1, 1000, 30_000, 1_000_003):
        tensor = torch.full((count,), VALUES[rank.rank])
        part = torch.empty(count)
        dist.reduce_scatter_tensor(part, tensor.repeat(rank.world_size))
        dist.all_reduce(tensor)
        results += [tensor.unique().item(), part.unique().item()]
    dist.destroy_process_group()
    return results


def test_one_host_adds_in_pairs_without_being_asked() -> None:
    assert on_processes(adds_without_asking, 4) == [[2.0**24 + 2] * 8] * 4


def test_wrong_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must be one of off, ranks, world, got 'yes'"):
        ringcomm.options.reproducible(Options(reproducible="yes"))
    monkeypatch.setenv("RINGCOMM_REPRODUCIBLE", "1")
    with pytest.raises(ValueError, match="RINGCOMM_REPRODUCIBLE is '1'; it must be one of"):
        ringcomm.options.reproducible(Options())
