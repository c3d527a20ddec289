"""Digests in the flight record: which results have one, of what, and when files have them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from flight_records import SHORT, init, init_recorded, record
from programs import python
from ranks import Rank, on_processes

import ringcomm
from ringcomm import _C

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
LARGE = 1 << 16  # elements: by plan, not with the call

# What each entry's result is; None: it has none.
Results = list[list[torch.Tensor] | None]


def xxh64(data: bytes) -> str:
    """XXH64 with the seed 0, step by step as its specification has it."""

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & MASK

    def round_of(lane: int, word: int) -> int:
        return rotated((lane + word * P2) & MASK, 31) * P1 & MASK

    at = 0
    if len(data) < 32:
        hashed = P5
    else:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= len(data):
            words = struct.unpack_from("<4Q", data, at)
            lanes = [round_of(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        bits = (1, 7, 12, 18)
        hashed = sum(rotated(lane, each) for lane, each in zip(lanes, bits, strict=True)) & MASK
        for lane in lanes:
            hashed = ((hashed ^ round_of(0, lane)) * P1 + P4) & MASK
    hashed = (hashed + len(data)) & MASK
    while at + 8 <= len(data):
        hashed ^= round_of(0, struct.unpack_from("<Q", data, at)[0])
        hashed = (rotated(hashed, 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        hashed ^= struct.unpack_from("<I", data, at)[0] * P1 & MASK
        hashed = (rotated(hashed, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        hashed = rotated(hashed ^ byte * P5 & MASK, 11) * P1 & MASK
    for shift, prime in (33, P2), (29, P3), (32, 1):
        hashed = (hashed ^ hashed >> shift) * prime & MASK
    return f"{hashed:016x}"


def test_the_hash_here_is_that_of_its_author() -> None:
    for text, value in {
        "": "ef46db3751d8e999",
        "abc": "44bc2cf5ad770999",
        "Nobody inspects the spammish repetition": "fbcea83c8a378bf1",
    }.items():
        assert xxh64(text.encode()) == value


def bytes_of(tensor: torch.Tensor) -> bytes:
    if tensor.is_sparse:
        return bytes_of(tensor._indices()) + bytes_of(tensor._values())
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def values(rank: Rank, count: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Others on each rank."""
    return (torch.arange(count) * 3 + rank.rank + 1).to(dtype)


Case = Callable[[Rank], Results]


def direct(rank: Rank) -> Results:
    tensor = values(rank)
    ringcomm.all_reduce(tensor)
    return [[tensor]]


def by_plan(rank: Rank) -> Results:
    tensor = values(rank, LARGE)
    ringcomm.all_reduce(tensor)
    return [[tensor]]


def through_torch(rank: Rank) -> Results:
    tensor = values(rank)
    dist.all_reduce(tensor)
    return [[tensor]]


def strided(rank: Rank) -> Results:
    matrix = values(rank, 12).reshape(3, 4)
    dist.all_reduce(matrix.t())
    every_second = values(rank, 10)[::2]
    ringcomm.all_reduce(every_second)
    return [[matrix.t()], [every_second]]


def complex_numbers(rank: Rank) -> Results:
    tensor = torch.complex(values(rank), -values(rank))
    ringcomm.all_reduce(tensor)
    return [[tensor]]


def other_dtypes(rank: Rank) -> Results:
    results: Results = []
    for dtype in torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.float8_e5m2:
        tensor = values(rank, 7, dtype)
        ringcomm.all_reduce(tensor, dist.ReduceOp.MAX)
        results.append([tensor])
    return results


def asynchronous(rank: Rank) -> Results:
    """Operations that write to one tensor in turn: each digest is of what its operation left."""
    tensor = values(rank, LARGE)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    assert tensor[0] == 3 * 2**2  # the first value of rank 0 and of rank 1, and twice doubled
    return [[tensor / 4], [tensor / 2], [tensor]]


def coalesced(rank: Rank) -> Results:
    tensors = [values(rank, count) for count in (3, LARGE)]
    dist.all_reduce_coalesced(tensors)
    more = [values(rank, count) for count in (4, 5)]
    with dist._coalescing_manager():
        for tensor in more:
            dist.all_reduce(tensor)
    return [[tensor] for tensor in (*tensors, *more)]


def to_the_root(rank: Rank) -> Results:
    results: Results = []
    for call in ringcomm.reduce, dist.reduce:
        for tensor in values(rank), values(rank, 10)[::2]:
            call(tensor, 1)
            results.append([tensor] if rank.rank == 1 else None)
    parts = [torch.empty(5) for _ in range(rank.world_size)]
    dist.gather(values(rank), parts if rank.rank == 0 else None, 0)
    return [*results, parts if rank.rank == 0 else None]


def from_the_root(rank: Rank) -> Results:
    tensors = [values(rank), values(rank, 10)[::2]]
    ringcomm.broadcast(tensors[0], 1)
    dist.broadcast(tensors[1], 1)
    parts = [values(rank) for _ in range(rank.world_size)]
    own = torch.empty(5)
    dist.scatter(own, parts if rank.rank == 0 else None, 0)
    return [[tensor] for tensor in (*tensors, own)]


def lists(rank: Rank) -> Results:
    """The list and the one tensor that have the same elements have the same digest."""
    parts = [torch.empty(5) for _ in range(rank.world_size)]
    whole = torch.empty(5 * rank.world_size)
    dist.all_gather(parts, values(rank))
    ringcomm.all_gather_into_tensor(whole, values(rank))
    own = [torch.empty(5) for _ in range(2)]
    dist.reduce_scatter(own[0], [values(rank) for _ in range(rank.world_size)])
    ringcomm.reduce_scatter_tensor(own[1], values(rank, 5 * rank.world_size))
    exchanged = [torch.empty(5) for _ in range(rank.world_size)]
    dist.all_to_all(exchanged, parts)
    single = torch.empty(5 * rank.world_size)
    ringcomm.all_to_all_single(single, whole)
    return [[whole], parts, [own[0]], [own[1]], exchanged, [single]]


def sparse(rank: Rank) -> Results:
    tensor = torch.sparse_coo_tensor([[0, 1 + rank.rank]], [1.0, 2.0], (4,))
    dist.all_reduce(tensor)
    return [[tensor]]


def in_shared_memory(rank: Rank) -> Results:
    with ringcomm.shared_memory():
        tensor = values(rank, LARGE)
    ringcomm.all_reduce(tensor)
    return [[tensor]]


def messages(rank: Rank) -> Results:
    """Rank 0 sends, rank 1 receives."""
    receives = rank.rank == 1
    results: Results = []
    for count in 5, LARGE:
        for call in (ringcomm.recv, dist.recv) if receives else (ringcomm.send, dist.send):
            tensor = values(rank, count)
            call(tensor, 1 - rank.rank)
            results.append([tensor] if receives else None)
    strided = values(rank, 10)[::2]
    (dist.irecv if receives else dist.isend)(strided, 1 - rank.rank).wait()
    tensor = values(rank)
    dist.recv(tensor) if receives else dist.send(tensor, 1)
    return [*results, [strided] if receives else None, [tensor] if receives else None]


def nothing(rank: Rank) -> Results:
    ringcomm.barrier()
    dist.barrier()
    dist.monitored_barrier()
    empty = torch.empty(0)
    dist.all_reduce(empty)
    return [None, None, None, [empty]]


ON_ALL_RANKS = [
    direct,
    by_plan,
    through_torch,
    strided,
    complex_numbers,
    other_dtypes,
    asynchronous,
    coalesced,
    sparse,
    in_shared_memory,
]
CASES = [*ON_ALL_RANKS, to_the_root, from_the_root, lists, messages, nothing]


def recorded(rank: Rank, case: Case, path: Path) -> list[str | None]:
    """The digests in the record, which are those of the results."""
    os.environ["RINGCOMM_FLIGHT_DIGESTS"] = "1"
    init(rank)
    results = case(rank)
    entries = record(ringcomm.dump(path / str(rank.rank)))["entries"]
    found: list[str | None] = [entry["digest"] for entry in entries]
    assert all(entry["state"] == "completed" for entry in entries)
    wanted = [None if each is None else xxh64(b"".join(map(bytes_of, each))) for each in results]
    assert found == wanted, [entry["profiling_name"] for entry in entries]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_result_has_its_digest(tmp_path: Path, case: Case) -> None:
    first, *others = on_processes(recorded, 2, case, tmp_path)
    if case in ON_ALL_RANKS:
        assert others == [first] and None not in first


def not_asked_for(rank: Rank, path: Path) -> None:
    init(rank)
    by_plan(rank)
    through_torch(rank)
    entries = record(ringcomm.dump(path / str(rank.rank)))["entries"]
    assert len(entries) == 2 and not any("digest" in entry for entry in entries)


def test_there_are_none_where_none_are_asked_for(tmp_path: Path) -> None:
    on_processes(not_asked_for, 2, tmp_path)


def stays_fast(rank: Rank, is_on: bool) -> None:
    os.environ["RINGCOMM_FLIGHT_DIGESTS"] = str(int(is_on))
    init(rank)
    tensor = values(rank)
    ringcomm.all_reduce(tensor)
    assert _C.try_all_reduce_sync(tensor, dist.ReduceOp.SUM, None)


@pytest.mark.parametrize("is_on", [False, True])
def test_direct_calls_stay_direct(is_on: bool) -> None:
    on_processes(stays_fast, 2, is_on)


def lines(rank: Rank, path: Path, settings: dict[str, str]) -> list[Any]:
    os.environ.update(settings, RINGCOMM_FLIGHT_DIGESTS="1")
    init(rank)
    direct(rank)
    (entry,) = record(ringcomm.dump(path))["entries"]
    assert entry["digest"]
    return [frame["name"] for frame in entry["frames"]]


def test_calls_have_their_lines_unless_that_is_turned_off(tmp_path: Path) -> None:
    assert "direct" in on_processes(lines, 1, tmp_path / "record", {})[0]
    off = {"RINGCOMM_FLIGHT_STACKS": "0"}
    assert on_processes(lines, 1, tmp_path / "record", off) == [[]]


def test_digests_need_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCOMM_FLIGHT_DIGESTS", "1")
    monkeypatch.setenv("RINGCOMM_FLIGHT_RECORDS", "0")
    with pytest.raises(ValueError, match="RINGCOMM_FLIGHT_RECORDS is 0"):
        ringcomm.flight.start()


ENDS = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("ring", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
{end}
"""


@pytest.mark.parametrize(
    ("end", "settings", "is_written"),
    [
        ("", {}, True),
        ("dist.destroy_process_group()", {}, True),
        ("raise SystemExit(3)", {}, True),
        ("import sys; os.fork() and os.wait() or sys.exit()", {}, True),
        ("os.fork() and os._exit(0)", {}, False),
        ("", {"RINGCOMM_FLIGHT_DUMP": "0"}, False),
        ("", {"RINGCOMM_FLIGHT_DIGESTS": "0"}, False),
    ],
)
def test_a_process_writes_its_record_as_it_ends(
    tmp_path: Path, end: str, settings: dict[str, str], is_written: bool
) -> None:
    asked_for = {"RINGCOMM_FLIGHT_DIGESTS": "1", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_"}
    result = python("-c", ENDS.format(end=end), **{**asked_for, **settings})
    assert result.stderr == ""
    assert os.listdir(tmp_path) == (["rank_0"] if is_written else [])
    if is_written:
        (entry,) = record(tmp_path / "rank_0")["entries"]
        assert entry["digest"] == xxh64(bytes_of(torch.ones(3)))


def fails(rank: Rank, folder: Path) -> None:
    os.environ["RINGCOMM_FLIGHT_DIGESTS"] = "1"
    init_recorded(rank, folder, SHORT)
    dist.barrier()
    if rank.rank == 1:
        rank.store.wait(["raised"])
        return
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(3))
    before = (folder / "rank_0").read_bytes()
    rank.store.set("raised", "1")
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(4))
    _C.close_all()
    assert (folder / "rank_0").read_bytes() == before


def test_the_record_of_a_failure_stays(tmp_path: Path) -> None:
    on_processes(fails, 2, tmp_path)
