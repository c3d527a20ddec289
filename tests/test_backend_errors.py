"""Bad calls: what one rank can know is raised before anything is sent, and the group goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch.distributed import ReduceOp

import ringcomm
from ringcomm import _delegate

Call = Callable[[], object]


def still_works(rank: Rank) -> None:
    tensor = torch.full((9,), float(rank.rank))
    dist.all_reduce(tensor)
    assert tensor[0] == sum(range(rank.world_size))


def backend() -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def bad_calls(world_size: int) -> list[tuple[type[Exception], str, Call]]:
    n = world_size
    f, i = torch.ones(4), torch.ones(4, dtype=torch.int32)
    wrong_list = [torch.empty(4) for _ in range(n + 1)]
    meta = torch.ones(4, device="meta")
    return [
        (ValueError, "op=band is not defined for dtype=float32", lambda: reduce(f, ReduceOp.BAND)),
        (ValueError, "op=avg is not defined for dtype=bool", lambda: reduce(f > 0, ReduceOp.AVG)),
        (
            ValueError,
            "op=premul_sum is not defined for dtype=int32",
            lambda: reduce(i, dist._make_nccl_premul_sum(2.0)),
        ),
        (ValueError, "dtype=uint16 cannot be reduced", lambda: reduce(i.to(torch.uint16))),
        (
            ValueError,
            "op=product is not defined for dtype=complex64",
            lambda: backend().reduce(f.to(torch.complex64), 0, ReduceOp.PRODUCT),
        ),
        # torch.distributed itself passes over meta tensors, so they are handed to the backend.
        (NotImplementedError, "tensor on meta", lambda: backend().allreduce([meta])),
        (NotImplementedError, "tensor on meta", lambda: backend().broadcast([meta])),
        (NotImplementedError, "tensor on meta", lambda: backend().send([meta], another(), 0)),
        (ValueError, "layout", lambda: backend().broadcast([f.to_sparse()])),
        (
            ValueError,
            rf"takes {n} output tensors, one per rank, got {n + 1}",
            lambda: dist.all_gather(wrong_list, f),
        ),
        (
            ValueError,
            rf"takes {n} input tensors, one per rank, got {n + 1}",
            lambda: dist.reduce_scatter(f.clone(), wrong_list),
        ),
        (
            ValueError,
            rf"all_gather_into_tensor: the output tensor has 5 elements; it must have {4 * n}",
            lambda: dist.all_gather_into_tensor(torch.empty(5), f),
        ),
        (
            ValueError,
            rf"reduce_scatter_tensor: the input tensor has 4 elements; it must have {4 * n}",
            lambda: dist.reduce_scatter_tensor(torch.empty(4), f),
        ),
        (
            ValueError,
            "the input has dtype=Int and the output dtype=Float",
            lambda: backend()._allgather_base(torch.empty(4 * n), i),
        ),
        (
            ValueError,
            "the split sizes of the input tensor add up to 5; its dimension 0 is 4",
            lambda: dist.all_to_all_single(torch.empty(n), f, [1] * n, [5] + [0] * (n - 1)),
        ),
        (
            ValueError,
            "must be divisible by the world size",
            lambda: dist.all_to_all_single(torch.empty(n + 1), torch.empty(n + 1)),
        ),
        (ValueError, "root is rank 99", lambda: backend().broadcast(f, 99)),
        (ValueError, "peer is rank 99", lambda: backend().send([f], 99, 0)),
        (ValueError, "tag is -3", lambda: backend().send([f], another(), -3)),
        (ValueError, "cannot send to or receive from itself", send_to_self),
        (
            ValueError,
            "only the root, rank",
            lambda: backend().gather([[torch.empty(4) for _ in range(n)]], [f], root_of_gather()),
        ),
    ]


def reduce(tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM) -> None:
    dist.all_reduce(tensor, op)


def another() -> int:
    return (dist.get_rank() + 1) % dist.get_world_size()


def send_to_self() -> None:
    backend().send([torch.ones(1)], dist.get_rank(), 0)


def root_of_gather() -> dist.GatherOptions:
    options = dist.distributed_c10d.GatherOptions()
    options.rootRank = (dist.get_rank() + 1) % dist.get_world_size()
    return options


def call_badly(rank: Rank) -> None:
    for kind, match, call in bad_calls(rank.world_size):
        with pytest.raises(kind, match=match):
            call()
        still_works(rank)


def test_bad_calls_are_refused_on_the_rank_that_makes_them() -> None:
    on_processes(call_badly, 3, backend="ring")


def coalesce_badly(rank: Rank) -> None:
    good, wrong = torch.ones(4), torch.ones(5)
    for _ in range(2):
        with pytest.raises(ValueError, match="must have"), dist._coalescing_manager():
            dist.all_gather_into_tensor(torch.empty(4 * rank.world_size), good)
            dist.all_gather_into_tensor(torch.empty(4 * rank.world_size), wrong)
        if rank.rank == 0:
            with pytest.raises(ValueError, match="peer is rank 77"):
                peerless = dist.P2POp(dist.isend, good, 1)
                peerless.group_peer = 77
                dist.batch_isend_irecv([peerless])
        still_works(rank)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, good, (rank.rank + 1) % rank.world_size),
                dist.P2POp(dist.irecv, wrong[:4], (rank.rank - 1) % rank.world_size),
            ]
        )
        for work in works:
            work.wait()
        dist.all_reduce_coalesced([good.clone(), wrong.clone()])
        still_works(rank)


def test_a_bad_part_of_a_coalesced_call_keeps_the_others_from_starting() -> None:
    on_processes(coalesce_badly, 3, backend="ring")


def disagreements(rank: Rank) -> list[tuple[str, Call]]:
    """Calls that do not fit together: what the error says, and this rank's call."""
    odd = rank.rank == 1
    n = rank.world_size
    count = 5 if odd else 4
    large = 50_000 + count
    others = "ranks 0 and 2"
    return [
        (
            f"{others} called all_reduce.count=4.*rank 1 called all_reduce.count=5",
            lambda: dist.all_reduce(torch.ones(count)),
        ),
        (
            f"{others} called all_reduce.count=50004.*rank 1 called all_reduce.count=50005",
            lambda: dist.all_reduce(torch.ones(large)),
        ),
        (
            "rank 1 called all_reduce.*dtype=float64",
            lambda: dist.all_reduce(torch.ones(4, dtype=torch.float64 if odd else torch.float32)),
        ),
        (
            "rank 1 called all_reduce.*op=max",
            lambda: dist.all_reduce(torch.ones(4), ReduceOp.MAX if odd else ReduceOp.SUM),
        ),
        (
            f"{others} called all_reduce.*rank 1 called broadcast",
            lambda: dist.broadcast(torch.ones(4), 0) if odd else dist.all_reduce(torch.ones(4)),
        ),
        (
            f"{others} called barrier.*rank 1 called all_gather",
            lambda: (
                dist.all_gather_into_tensor(torch.empty(4 * n), torch.ones(4))
                if odd
                else dist.barrier()
            ),
        ),
        ("rank 1 called broadcast.*root=1", lambda: dist.broadcast(torch.ones(4), int(odd))),
        ("rank 1 called reduce.*root=1", lambda: dist.reduce(torch.ones(4), int(odd))),
        (
            "rank 1 called reduce_scatter",
            lambda: dist.reduce_scatter_tensor(torch.empty(count), torch.ones(count * n)),
        ),
        (
            "rank 1 has [23] elements for rank 0, which expects 2|rank 1 .* expects",
            lambda: dist.all_to_all_single(
                torch.empty(2 * n), torch.ones(2 * n + odd), [2] * n, [2 + odd] + [2] * (n - 1)
            ),
        ),
        (
            "other counts per rank",
            lambda: dist.all_gather(
                [torch.empty(4), torch.empty(3 + odd), torch.empty(5 - odd)],
                torch.ones([4, 4, 5][rank.rank]),
            ),
        ),
        (
            "rank 1 called gather",
            lambda: dist.gather(
                torch.ones(count),
                [torch.empty(4) for _ in range(n)] if rank.rank == 0 else None,
            ),
        ),
    ]


def disagree(rank: Rank) -> None:
    for match, call in disagreements(rank):
        with pytest.raises(dist.DistBackendError, match=match):
            call()
        still_works(rank)


def test_disagreeing_ranks_are_named_on_every_rank() -> None:
    on_processes(disagree, 3, backend="ring")


def closed(rank: Rank) -> None:
    group = dist.new_group([0, 1])
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    ring = group._get_backend(torch.device("cpu"))
    ring.shutdown()
    for call in (
        lambda: ring.allreduce([tensor]).wait(),
        lambda: ring.send([tensor], 1 - rank.rank, 0),
        lambda: ring.barrier().wait(),
    ):
        with pytest.raises(dist.DistBackendError, match="process group is closed"):
            call()
    still_works(rank)


def test_a_closed_group_says_so() -> None:
    on_processes(closed, 2, backend="ring")


def test_other_pg_options_are_refused() -> None:
    store = dist.HashStore()
    with pytest.raises(ValueError, match=r"must be ringcomm\.Options"):
        dist.init_process_group("ring", store=store, rank=0, world_size=1, pg_options=object())
    if dist.is_initialized():
        dist.destroy_process_group()


# Groups are named in errors by what they are called, and how long that may be nobody says. One of
# four names ends inside a character where the text of the error is cut.
LONG = [offset * "x" + 700 * "\U0001f3d6" for offset in range(4)]


def fails_with_a_long_text(rank: Rank) -> None:
    for name in LONG:
        group = dist.new_group([1, 2], timeout=timedelta(seconds=2), group_desc=name)
        rank.meet()
        if rank.rank == 1:
            with pytest.raises(dist.DistBackendError, match="Timed out"):
                dist.all_reduce(torch.ones(3), group=group)
            rank.store.set(f"failed {name[:4]}", "")
        elif rank.rank == 2:
            rank.store.wait([f"failed {name[:4]}"])
            with pytest.raises(dist.DistBackendError) as raised:
                dist.all_reduce(torch.ones(3), group=group)
            text = str(raised.value)
            assert f"because the group failed on rank 1 (rank 0 of group {name[:4]}" in text
            assert "\ufffd" not in text
            text.encode()
        rank.meet()
        still_works(rank)


def test_a_long_error_is_read_by_the_others() -> None:
    on_processes(fails_with_a_long_text, 3, backend="ring")


def refused_with_a_long_text(rank: Rank) -> None:
    for offset in range(4):
        wrong = offset * "x" + 20_000 * "\U0001f3d6"  # more than an announcement has room for
        if rank.rank == 0:
            with pytest.raises(TypeError, match="op must be a ReduceOp"):
                ringcomm.all_reduce(torch.ones(3), wrong)  # type: ignore[arg-type]
        else:
            with pytest.raises(dist.DistBackendError, match="rank 0's arguments were") as raised:
                dist.all_reduce(torch.ones(3))
            text = str(raised.value)
            assert f"got '{wrong[:9000]}" in text
            assert text.endswith("\U0001f3d6. Nothing was sent.")
            assert "\ufffd" not in text
        still_works(rank)


def test_a_long_refusal_is_read_by_the_others() -> None:
    on_processes(refused_with_a_long_text, 2, backend="ring")


def refused_with_surrogates(rank: Rank) -> None:
    def refuse(arguments: object) -> None:
        raise ValueError("a name that holds \udcff\na second line")

    if rank.rank == 0:
        right, _delegate.check = _delegate.check, refuse
        with pytest.raises(ValueError, match="a name that holds \udcff"):
            ringcomm.all_reduce(torch.ones(3))
        _delegate.check = right
    else:
        with pytest.raises(dist.DistBackendError, match=r"a name that holds \\udcff\. Nothing"):
            ringcomm.all_reduce(torch.ones(3))
    still_works(rank)


def test_a_refusal_with_lone_surrogates_reaches_all_ranks() -> None:
    on_processes(refused_with_surrogates, 2, backend="ring")


def named_with_surrogates(rank: Rank) -> None:
    with pytest.raises(ValueError, match=r"without lone surrogates, got 'tp \\ud800'"):
        ringcomm.new_group(group_desc="tp \ud800")
    still_works(rank)


def test_a_description_with_a_lone_surrogate_is_refused() -> None:
    on_processes(named_with_surrogates, 2, backend="ring")
