"""What torch's analyzer of flight records makes of the ring's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from documents import blocks, page
from flight_records import SHORT, analysis, files_in, init_recorded, record
from ranks import Rank, on_processes, outcomes

import ringcomm

SHOWN = blocks(page("howto/debugging.md"), "")
NAMES = ("_all_gather_base", "_reduce_scatter_base", "all_gather", "all_reduce")
NAMES += ("all_reduce_barrier", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter")
NAMES += ("scatter", "send 0->1")
TROUBLE = ("Not all ranks", "has errors", "mismatch", "Culprit", "cannot decide", "empty op list")


def all_reduce(_: Rank) -> None:
    dist.all_reduce(torch.ones(1000))


def all_reduce_async(_: Rank) -> None:
    dist.all_reduce(torch.ones(1000), async_op=True).wait()


def direct_all_reduce(_: Rank) -> None:
    ringcomm.all_reduce(torch.ones(1000))


def gather_into_tensor(rank: Rank) -> None:
    dist.all_gather_into_tensor(torch.ones(1000 * rank.world_size), torch.ones(1000))


def hang(rank: Rank, folder: Path, call: Callable[[Rank], None]) -> str:
    """Rank 2 leaves out the second collective."""
    rank.meet()
    init_recorded(rank, folder, SHORT)
    ringcomm.all_reduce(torch.ones(3))
    if rank.rank == 2:
        rank.store.wait(["raised"])
        return ""
    with pytest.raises(dist.DistBackendError) as raised:
        call(rank)
    assert files_in(folder) == [f"rank_{rank}" for rank in range(4)]
    rank.store.set("raised", "1")
    return str(raised.value)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (all_reduce, "all_reduce"),
        (all_reduce_async, "all_reduce"),
        (direct_all_reduce, "all_reduce"),
        (gather_into_tensor, "_all_gather_base"),
    ],
)
def test_the_analyzer_names_the_rank_that_does_not_come(
    tmp_path: Path, call: Callable[[Rank], None], name: str
) -> None:
    errors = on_processes(hang, 4, tmp_path, call)
    for rank in (0, 1, 3):
        assert "Timed out after" in errors[rank]
        assert f"What this rank did last is recorded in {tmp_path}/rank_{rank}" in errors[rank]
    assert files_in(tmp_path) == [f"rank_{rank}" for rank in range(4)]
    text = analysis(tmp_path)
    (shown,) = [block for block in SHOWN if "missing ranks: {2}" in block]
    shown = shown.replace("all_reduce", name)
    if name == "_all_gather_base":
        shown = shown.replace("output sizes: [[1000]]", "output sizes: [[4000]]")
    assert shown in text
    assert text.count("Not all ranks") == 1


def dies(rank: Rank, folder: Path) -> None:
    init_recorded(rank, folder)
    dist.barrier()
    if rank.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1000))


def test_of_a_killed_rank_the_record_is_missing(tmp_path: Path) -> None:
    results = outcomes(dies, 4, tmp_path)
    assert [result.ended for result in results].count("raised") == 3
    assert files_in(tmp_path) == ["rank_0", "rank_1", "rank_3"]
    assert "Missing dump files from ranks {2}" in analysis(tmp_path)
    partial = analysis(tmp_path, "--allow-incomplete-ranks")
    assert "missed FR dumps from ranks ({2})" in partial


def every_operation(rank: Rank, folder: Path, digests: str) -> None:
    os.environ["RINGCOMM_FLIGHT_DIGESTS"] = digests
    init_recorded(rank, folder)
    world_size = rank.world_size
    own, all_ = torch.ones(2, 3), torch.ones(2 * world_size, 3)
    parts = list(all_.chunk(world_size))
    at_root = rank.rank == 0
    uneven = [torch.ones(1 + (rank.rank + peer) % 2) for peer in range(world_size)]
    for _ in range(2):
        ringcomm.all_reduce(own)
        dist.all_reduce(torch.tensor(1, dtype=torch.int64), dist.ReduceOp.MAX)
        dist.reduce(own, 1)
        dist.broadcast(own, 2)
        dist.all_gather(parts, own)
        dist.all_gather_into_tensor(all_, own)
        dist.reduce_scatter(own, parts)
        dist.reduce_scatter_tensor(own, all_)
        dist.gather(own, parts if at_root else None, 0)
        dist.scatter(own, parts if at_root else None, 0)
        dist.all_to_all([torch.empty_like(part) for part in uneven], uneven)
        dist.all_to_all_single(torch.empty_like(all_), all_)
        dist.barrier()
        dist.all_reduce(torch.ones(4, dtype=torch.bfloat16), async_op=True).wait()
        with pytest.warns(FutureWarning):
            dist.all_reduce_coalesced([own, all_])
        ring = [(rank.rank + 1) % world_size, (rank.rank - 1) % world_size]
        dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, own, ring[0]), dist.P2POp(dist.irecv, parts[0], ring[1])]
        )[-1].wait()
        if rank.rank == 1:
            dist.send(own, 3)
            dist.send(own, 3, tag=7)
        elif rank.rank == 3:
            dist.recv(own, 1, tag=7)
            assert dist.recv(own) == 1
    pair = dist.new_group([1, 3], group_desc="a pair")
    if rank.rank in (1, 3):
        dist.all_reduce(own, group=pair)
        if rank.rank == 1:
            dist.send(own, 3, group=pair)
        else:
            dist.recv(own, 1, group=pair)
    dist.barrier()
    assert ringcomm.dump() == f"{folder}/rank_{rank.rank}"


@pytest.mark.parametrize("digests", ["0", "1"])
def test_the_analyzer_finds_nothing_wrong_with_any_operation_that_went_well(
    tmp_path: Path, digests: str
) -> None:
    on_processes(every_operation, 4, tmp_path / "records", digests)
    text = analysis(tmp_path / "records", "-o", str(tmp_path / "database"))
    assert not any(word in text for word in TROUBLE), text
    entries = record(tmp_path / "records" / "rank_1")["entries"]
    assert {entry["state"] for entry in entries} == {"completed"}
    _, database = record(tmp_path / "database")
    matched = {collective.collective_name for collective in database.collectives}
    assert {f"nccl:{name}" for name in NAMES} <= matched
    assert {entry["profiling_name"] for entry in entries} <= matched | {"nccl:recv 1<-0"}
    assert all(not collective.missing_ranks for collective in database.collectives)
    assert {group.desc for group in database.groups} == {"default_pg", "a pair"}


def waits_and_dumps(rank: Rank, folder: Path) -> list[str]:
    init_recorded(rank, folder)
    states = []
    for _ in range(100):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        dist.barrier()
        states.append(record(ringcomm.dump())["entries"][-1]["state"])
        work.wait()
    return states


def test_who_has_waited_finds_it_recorded(tmp_path: Path) -> None:
    for states in on_processes(waits_and_dumps, 3, tmp_path):
        assert set(states) == {"completed"}


def forgets_to_send(rank: Rank, folder: Path) -> None:
    rank.meet()
    init_recorded(rank, folder, SHORT)
    tensor = torch.ones(3)
    if rank.rank == 1:
        dist.send(tensor, 3)
    if rank.rank == 3:
        dist.recv(tensor, 1)
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            dist.recv(tensor, 1)
    else:
        rank.store.wait(["raised"])
        ringcomm.dump()
    rank.store.set("raised", "1")


def test_the_analyzer_names_the_rank_that_does_not_send(tmp_path: Path) -> None:
    on_processes(forgets_to_send, 4, tmp_path)
    text = analysis(tmp_path)
    assert "Not all ranks joining collective, sequence number: 2" in text
    assert "group info: 0 1->3:default_pg" in text
    assert "collective: nccl:recv 1<-0" in text
    assert "missing ranks: {1}" in text
    assert text.count("Not all ranks") == 1


def disagrees(rank: Rank, folder: Path) -> list[dict[str, Any]]:
    init_recorded(rank, folder)
    with pytest.raises(dist.DistBackendError, match="disagree"):
        dist.all_reduce(torch.ones(999 if rank.rank == 1 else 1000))
    return record(folder / f"rank_{rank.rank}")["entries"]


def test_the_analyzer_names_the_rank_whose_call_differs(tmp_path: Path) -> None:
    for rank, entries in enumerate(on_processes(disagrees, 3, tmp_path)):
        assert [entry["input_sizes"] for entry in entries] == [[[999 if rank == 1 else 1000]]]
        assert entries[0]["retired"] and entries[0]["state"] == "started"
    text = analysis(tmp_path)
    assert "Collective sequence number: 1 has errors" in text
    assert "Culprit rank 1; Error type: SIZE_OR_SYNTAX_MISMATCH" in text


def is_refused(rank: Rank, folder: Path) -> None:
    init_recorded(rank, folder)
    tensor = torch.ones(1000)
    with pytest.raises(ValueError if rank.rank == 1 else dist.DistBackendError):
        dist.all_reduce(tensor, dist.ReduceOp.BAND if rank.rank == 1 else dist.ReduceOp.SUM)
    dist.all_reduce(tensor)
    ringcomm.dump()


def test_the_analyzer_names_the_rank_whose_call_was_refused(tmp_path: Path) -> None:
    on_processes(is_refused, 3, tmp_path)
    text = analysis(tmp_path)
    assert "Not all ranks joining collective, sequence number: 1" in text
    assert "missing ranks: {1}" in text
    assert text.count("Not all ranks") == 1
