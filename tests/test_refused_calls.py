"""Arguments that one rank's call is refused for: the others raise that at once, and all go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm

N = 3
WRONG = 1  # the rank whose arguments are refused


def still_works(rank: Rank) -> None:
    for count in (9, 100_000):
        tensor = torch.full((count,), float(rank.rank))
        dist.all_reduce(tensor)
        assert tensor[0] == sum(range(rank.world_size))


def calls(wrong: bool) -> list[tuple[str, Callable[[], object]]]:
    """What the refusal says, and a call that is right or wrong."""
    count = 5 if wrong else 4
    x = torch.ones(4)
    dtype = torch.int32 if wrong else torch.float32
    device = "meta" if wrong else "cpu"
    pieces = [torch.ones(4) for _ in range(N)]
    reduce_op = dist.ReduceOp.BAND if wrong else dist.ReduceOp.SUM
    return [
        ("op=band is not defined for dtype=float32", lambda: dist.all_reduce(x, reduce_op)),
        ("op=band is not defined", lambda: ringcomm.all_reduce(x, reduce_op)),
        ("op=band is not defined", lambda: dist.reduce(x, 0, reduce_op)),
        ("tensor on meta", lambda: backend().broadcast([torch.ones(4, device=device)]).wait()),
        (
            "output tensor",
            lambda: dist.all_gather_into_tensor(torch.empty(N * count), x),
        ),
        (
            "input tensor",
            lambda: dist.reduce_scatter_tensor(torch.empty(4), torch.empty(N * count)),
        ),
        ("dtype", lambda: backend().allgather([pieces], [torch.ones(4, dtype=dtype)]).wait()),
        ("dtype", lambda: backend().reduce_scatter([x.to(dtype)], [pieces]).wait()),
        (
            "must be divisible by the world size",
            lambda: dist.all_to_all_single(torch.empty(8 + count), torch.empty(8 + count)),
        ),
        (
            "add up to 3; its dimension 0 is 1",
            lambda: dist.all_to_all_single(
                torch.empty(() if wrong else 3), torch.empty(() if wrong else 3), [1] * N, [1] * N
            ),
        ),
        ("takes 3", lambda: backend().alltoall(pieces[: 2 if wrong else 3], pieces).wait()),
        (
            "share memory",
            lambda: (
                backend()
                .scatter(
                    [torch.zeros(1).expand(4) if wrong else torch.zeros(4)],
                    [pieces] if dist.get_rank() == 0 else [],
                    root(),
                )
                .wait()
            ),
        ),
        (
            "got output tensors on rank 1",
            lambda: (
                backend()
                .gather([pieces] if wrong or dist.get_rank() == 0 else [], [x], gather_root())
                .wait()
            ),
        ),
        (
            "op=band",
            lambda: (
                backend()
                .allreduce_coalesced([x, x.clone(), x.clone()], coalesced(reduce_op))
                .wait()
            ),
        ),
        ("op=band", lambda: dist.all_reduce(x, reduce_op, async_op=True).wait()),
    ]


def backend() -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def root() -> dist.ScatterOptions:
    options = dist.ScatterOptions()
    options.rootRank = 0
    return options


def gather_root() -> dist.GatherOptions:
    options = dist.GatherOptions()
    options.rootRank = 0
    return options


def coalesced(op: dist.ReduceOp) -> dist.AllreduceCoalescedOptions:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op
    return options


def one_is_refused(rank: Rank) -> None:
    wrong = rank.rank == WRONG
    for what, call in calls(wrong):
        if wrong:
            with pytest.raises((ValueError, NotImplementedError), match=what):
                call()
        else:
            words = f"rank {WRONG}'s arguments were refused: .*{what}.* Nothing was sent"
            with pytest.raises(dist.DistBackendError, match=f"(?s){words}"):
                call()
        still_works(rank)


def test_the_others_raise_what_one_rank_was_refused_for() -> None:
    on_processes(one_is_refused, N, backend="ring", timeout=120)


def refused_again_and_again(rank: Rank) -> None:
    x = torch.ones(4)
    wrong = rank.rank == WRONG
    for _ in range(20):
        op = dist.ReduceOp.BAND if wrong else dist.ReduceOp.SUM
        with pytest.raises(ValueError if wrong else dist.DistBackendError, match="op=band"):
            dist.all_reduce(x, op)
    still_works(rank)
    for _ in range(5):  # all of them
        with pytest.raises(ValueError, match="op=band"):
            dist.all_reduce(x, dist.ReduceOp.BAND)
    still_works(rank)


def test_refusals_in_a_row() -> None:
    on_processes(refused_again_and_again, N, backend="ring", timeout=120)


def refused_behind_others(rank: Rank) -> None:
    wrong = rank.rank == WRONG
    big = [torch.ones(300_000) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in big]
    op = dist.ReduceOp.BAND if wrong else dist.ReduceOp.SUM
    if wrong:
        with pytest.raises(ValueError, match="op=band"):
            dist.all_reduce(big[0], op, async_op=True)
        refused = None
    else:
        refused = dist.all_reduce(torch.ones(3), op, async_op=True)
    after = torch.ones(7)
    last = dist.all_reduce(after, async_op=True)
    for work in works:
        work.wait()
    if refused is not None:
        with pytest.raises(dist.DistBackendError, match="op=band"):
            refused.wait()
    last.wait()
    assert all(tensor[0] == N for tensor in [*big, after])
    assert backend()._get_sequence_number_for_group() == 6
    still_works(rank)


def test_a_refusal_keeps_its_place_in_the_order() -> None:
    on_processes(refused_behind_others, N, backend="ring", timeout=120)


LARGE = 3_000_000  # more than is in a mail box when a send is done


def bad() -> torch.Tensor:
    """Nothing can be received into it."""
    return torch.zeros(1).expand(4)


def sparse() -> torch.Tensor:
    return torch.ones(4).to_sparse()


def refused_messages(rank: Rank) -> None:
    peer = 1 - rank.rank
    if rank.rank == WRONG:
        for call in (
            lambda: backend().send([sparse()], peer, 0),
            lambda: backend().send([sparse()], peer, 3),
            lambda: ringcomm.send(sparse(), peer),
        ):
            with pytest.raises((ValueError, NotImplementedError), match=r"only dense|c10d::send"):
                call()
        for call in (
            lambda: dist.recv(bad(), peer),
            lambda: ringcomm.recv(bad(), peer, tag=3),
            lambda: dist.recv(bad()),
        ):
            with pytest.raises(ValueError, match="share memory"):
                call()
        dist.send(torch.ones(4), peer)
    else:
        received = torch.zeros(4)
        for call in (
            lambda: dist.recv(received, peer),
            lambda: ringcomm.irecv(received, peer, tag=3).wait(),
            lambda: dist.recv(received),
        ):
            words = rf"rank 0 in recv\(.*rank {WRONG}'s arguments were refused: .*"
            words += "(only dense|c10d::send)"
            with pytest.raises(dist.DistBackendError, match=words):
                call()
        for call in (
            lambda: dist.send(torch.ones(LARGE), peer),
            lambda: ringcomm.isend(torch.ones(LARGE), peer, tag=3).wait(),
            lambda: dist.send(torch.ones(LARGE), peer),
        ):
            words = rf"rank 0 in send\(.*rank {WRONG}'s arguments were refused: .*share memory"
            with pytest.raises(dist.DistBackendError, match=words):
                call()
        dist.recv(received, peer)
        assert received.tolist() == [1.0] * 4
    still_works(rank)


def test_the_peer_of_a_refused_message_raises_and_the_next_ones_arrive() -> None:
    on_processes(refused_messages, 2, backend="ring", timeout=60)


def refused_for_nobody(rank: Rank) -> None:
    peer = 1 - rank.rank
    for call in (
        lambda: dist.send(torch.ones(4), peer, tag=-3),
        lambda: dist.recv(torch.ones(4), peer, tag=-3),
        lambda: backend().send([torch.ones(4)], 7, 0),
        lambda: backend().recv([torch.ones(4)], rank.rank, 0),
    ):
        with pytest.raises(ValueError, match=r"the tag is -3|peer is rank 7|from itself"):
            call()
    received = torch.zeros(4)
    sending = dist.isend(torch.full((4,), float(rank.rank)), peer)
    dist.recv(received, peer)
    sending.wait()
    assert received.tolist() == [float(peer)] * 4
    still_works(rank)


def test_what_no_message_has_is_announced_to_no_rank() -> None:
    on_processes(refused_for_nobody, 2, backend="ring", timeout=60)


def refused_in_a_batch(rank: Rank) -> None:
    peer = 1 - rank.rank
    batch = [
        ringcomm.P2POp(ringcomm.isend, torch.ones(4), peer, tag=1),
        ringcomm.P2POp(ringcomm.irecv, torch.zeros(4), peer, tag=2),
    ]
    if rank.rank == WRONG:
        batch[1] = ringcomm.P2POp(ringcomm.irecv, torch._neg_view(torch.zeros(4)), peer, tag=2)
        batch[0].tag, batch[1].tag = 2, 1
        with pytest.raises(ValueError, match="resolve_neg"):
            ringcomm.batch_isend_irecv(batch)
    else:
        works = ringcomm.batch_isend_irecv(batch)
        with pytest.raises(dist.DistBackendError, match=r"batch_isend_irecv: .*resolve_neg"):
            works[1].wait()
        works[0].wait()  # as every send that its mail box holds
    still_works(rank)


def test_a_batch_with_what_would_be_lost_is_refused_whole() -> None:
    on_processes(refused_in_a_batch, 2, backend="ring", timeout=60)


def refused_and_not_awaited(rank: Rank) -> None:
    if rank.rank == WRONG:
        with pytest.raises(ValueError, match="share memory"):
            dist.recv(bad(), 1 - rank.rank)
        time.sleep(0.3)  # so long that others would see what it waits for
    else:
        time.sleep(0.3)
        assert ringcomm.status()[0].ranks[WRONG].doing == ""
    still_works(rank)


def test_a_refused_receive_is_nothing_that_a_rank_waits_in() -> None:
    on_processes(refused_and_not_awaited, 2, backend="ring", timeout=60)


def refused_by_torch(rank: Rank) -> None:
    x = torch.ones(4)
    pieces = [torch.ones(4) for _ in range(N)]
    wrong = rank.rank == WRONG
    gathered = pieces if wrong or rank.rank == 0 else None
    minimum = dist.ReduceOp.MIN if wrong else dist.ReduceOp.SUM
    values = torch.ones(4, dtype=torch.complex64)
    negated = torch._neg_view(x) if wrong else x
    conjugated = values.conj() if wrong else values
    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(3)]) if wrong else x
    sparse_values = values.to_sparse() if wrong else values
    no_tensor: Any = [1.0] if wrong else x
    for what, call in [
        ("gather: .*gather_list", lambda: ringcomm.gather(x, gathered)),
        ("all_gather: .*tensor_list", lambda: ringcomm.all_gather(x if wrong else pieces, x)),
        ("broadcast: .*7", lambda: ringcomm.broadcast(x, 7 if wrong else 0)),
        ("all_reduce: ", lambda: ringcomm.all_reduce(values, minimum, async_op=True).wait()),
        ("all_reduce: .*resolve_neg", lambda: ringcomm.all_reduce(negated)),
        ("broadcast: .*resolve_conj", lambda: ringcomm.broadcast(conjugated, 0)),
        ("all_reduce: .*NestedTensor", lambda: ringcomm.all_reduce(ragged)),
        ("all_reduce: .*sparse complex", lambda: ringcomm.all_reduce(sparse_values)),
        ("all_reduce: .*of type torch.Tensor", lambda: ringcomm.all_reduce(no_tensor)),
        ("broadcast: .*of type torch.Tensor", lambda: ringcomm.broadcast(no_tensor, 0)),
        (
            "all_to_all: ",
            lambda: ringcomm.all_to_all([] if wrong else pieces, pieces[:0] if wrong else pieces),
        ),
        (
            "all_reduce: op must be a ReduceOp",
            lambda: ringcomm.all_reduce(x, "sum" if wrong else minimum),
        ),
        ("band", lambda: ringcomm.reduce(x, 0, dist.ReduceOp.BAND if wrong else minimum)),
    ]:
        if wrong:
            with pytest.raises((TypeError, ValueError, NotImplementedError)):
                call()
        else:
            words = f"rank {WRONG}'s arguments were refused: .*{what}"
            with pytest.raises(dist.DistBackendError, match=words):
                call()
        still_works(rank)


def test_the_direct_calls_announce_what_torch_refuses() -> None:
    on_processes(refused_by_torch, N, backend="ring", timeout=60)


def sparse_complex_sum(rank: Rank) -> None:
    values = torch.tensor([1 + 2j])
    tensor = torch.sparse_coo_tensor([[rank.rank]], values, (N,), check_invariants=True)
    for is_async in (False, True):
        with pytest.raises(ValueError, match=r"view_as_real.*view_as_complex"):
            ringcomm.all_reduce(tensor, async_op=is_async)
    real = torch.view_as_real(tensor)
    ringcomm.all_reduce(real)
    assert torch.view_as_complex(real).to_dense().tolist() == [1 + 2j] * N
    still_works(rank)


def test_sparse_complex_tensors_are_refused_where_torch_would_lose_their_sum() -> None:
    on_processes(sparse_complex_sum, N, backend="ring", timeout=60)
