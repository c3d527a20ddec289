"""The direct calls' fast path: taken unless something watches, and right where it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch.distributed import ReduceOp

import ringcomm
from ringcomm import _delegate

WORLD_SIZE = 3


def given(rank: int) -> torch.Tensor:
    return torch.arange(7, dtype=torch.float32) + 10 * rank


def total() -> torch.Tensor:
    return torch.stack([given(r) for r in range(WORLD_SIZE)]).sum(0)


class Watch:
    """Counts the calls that torch.distributed carries out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        real = _delegate.announcing

        def announcing(*args: Any) -> Any:
            self.calls += 1
            return real(*args)

        monkeypatch.setattr(_delegate, "announcing", announcing)


def which_path(rank: Rank) -> None:
    from torch.profiler import profile
    from torch.utils._python_dispatch import TorchDispatchMode

    with pytest.MonkeyPatch.context() as monkeypatch:
        watch = Watch(monkeypatch)

        def calls(call: Callable[[], Any]) -> int:
            before = watch.calls
            call()
            return watch.calls - before

        ringcomm.barrier()  # the first call of a group makes it known
        tensor = given(rank.rank)
        matrix = torch.ones(4, 6)
        assert calls(lambda: ringcomm.all_reduce(tensor)) == 0
        assert torch.equal(tensor, total())
        assert calls(lambda: ringcomm.all_reduce(tensor, ReduceOp.AVG, dist.group.WORLD)) == 0
        assert torch.equal(tensor, total())
        assert calls(lambda: ringcomm.all_reduce(matrix[:, ::2])) == 1
        assert torch.equal(matrix[0], torch.tensor([3.0, 1.0] * 3))
        factor = dist._make_nccl_premul_sum(0.5)
        assert calls(lambda: ringcomm.all_reduce(tensor.zero_(), factor)) == 1
        parameter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        assert calls(lambda: ringcomm.all_reduce(parameter)) == 1
        assert torch.equal(parameter, torch.full((3,), 3.0))

        assert calls(lambda: ringcomm.all_reduce(tensor, async_op=True).wait()) == 1
        with profile() as profiler:
            assert calls(lambda: ringcomm.all_reduce(tensor)) == 1
        assert "ring:all_reduce" in {event.name for event in profiler.events()}

        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        with Mode():
            assert calls(lambda: ringcomm.all_reduce(tensor)) == 1
        assert any("allreduce_" in name for name in seen)


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_fast_path_is_taken_unless_something_watches(backend: str) -> None:
    on_processes(which_path, WORLD_SIZE, backend=backend)


def which_path_of_others(rank: Rank) -> None:
    n, me = rank.world_size, rank.rank
    ringcomm.init()
    subgroup = ringcomm.new_group()
    mine = torch.arange(4.0) + 4 * me
    everybodys = torch.arange(4.0 * n)
    parts = torch.ones(3 * n)

    def is_fast(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        before = watch.calls
        call(*args, **kwargs)
        return watch.calls == before

    with pytest.MonkeyPatch.context() as monkeypatch:
        watch = Watch(monkeypatch)
        ringcomm.barrier()
        ringcomm.barrier(subgroup)  # the first of a group makes it known
        assert is_fast(ringcomm.barrier)
        assert is_fast(ringcomm.barrier, group=subgroup)
        assert not is_fast(ringcomm.barrier, device_ids=[0])

        for group in (None, subgroup):
            out = torch.zeros(4 * n)
            assert is_fast(ringcomm.all_gather_into_tensor, out, mine, group=group)
            assert torch.equal(out, everybodys)
            own = out.zero_()[4 * me : 4 * me + 4].copy_(mine)  # in place
            assert is_fast(ringcomm.all_gather_into_tensor, out, own, group)
            assert torch.equal(out, everybodys)
            shifted = out[4 * me + 1 - me % 2 * 2 :][:4] if 0 < me < n - 1 else mine.clone()
            expected = [torch.empty(4) for _ in range(n)]
            ringcomm.all_gather(expected, shifted.clone())
            overlaps = shifted.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
            assert is_fast(ringcomm.all_gather_into_tensor, out, shifted, group) is not overlaps
            assert torch.equal(out, torch.cat(expected))

            got = torch.zeros(3)
            assert is_fast(ringcomm.reduce_scatter_tensor, got, parts, group=group)
            assert torch.equal(got, torch.full((3,), float(n)))
            assert is_fast(ringcomm.reduce_scatter_tensor, got, parts, ReduceOp.AVG, group)
            assert torch.equal(got, torch.ones(3))
            kwargs = {"op": ReduceOp.MAX, "group": group}
            assert is_fast(ringcomm.reduce_scatter_tensor, got, parts * me, **kwargs)
            assert torch.equal(got, torch.full((3,), n - 1.0))
            apart = torch.ones(3 * n, 2)[:, 0]
            assert not is_fast(ringcomm.reduce_scatter_tensor, got, apart, group=group)
            assert torch.equal(got, torch.full((3,), float(n)))

            for src in range(n):
                tensor = mine.clone()
                assert is_fast(ringcomm.broadcast, tensor, src, group)
                assert torch.equal(tensor, everybodys[4 * src :][:4])
                assert is_fast(ringcomm.broadcast, tensor.copy_(mine), src=src, group=group)
                assert torch.equal(tensor, everybodys[4 * src :][:4])
                tensor = mine.clone()
                assert is_fast(ringcomm.reduce, tensor, src, group=group)
                whole = everybodys.view(n, 4).sum(0)
                assert torch.equal(tensor, whole if me == src else mine)
                tensor = mine.clone()
                assert is_fast(ringcomm.reduce, tensor, src, ReduceOp.MAX, group)
                assert torch.equal(tensor, everybodys[-4:] if me == src else mine)

            sent = torch.arange(2.0 * n) + 100 * me
            received = torch.zeros(2 * n)
            assert is_fast(ringcomm.all_to_all_single, received, sent, group=group)
            assert torch.equal(
                received.view(n, 2),
                torch.stack([torch.arange(2.0) + 2 * me + 100 * r for r in range(n)]),
            )
            splits = {"output_split_sizes": [2] * n, "input_split_sizes": [2] * n}
            assert not is_fast(ringcomm.all_to_all_single, received, sent, group=group, **splits)
            assert not is_fast(ringcomm.all_to_all_single, sent, sent, group=group)
            assert torch.equal(sent, received)

        assert not is_fast(ringcomm.broadcast, torch.ones(4, 4).t(), 0)
        assert not is_fast(ringcomm.reduce, torch.ones(4, 4).t(), 0)
        work = ringcomm.broadcast(tensor, 0, async_op=True)
        assert work is not None and work.wait()

        # Refused on this rank, raised on the other.
        with pytest.raises((ValueError, dist.DistBackendError), match="must have"):
            ringcomm.all_gather_into_tensor(torch.zeros(4 * n + (me == 0)), mine)
        with pytest.raises((ValueError, dist.DistBackendError), match="the root is rank 9"):
            ringcomm.broadcast(tensor, 9) if me == 0 else ringcomm.broadcast(tensor, 0)
    ringcomm.barrier()


def test_fast_paths_of_other_collectives() -> None:
    on_processes(which_path_of_others, WORLD_SIZE, backend="ring")


def roots_of_subgroups(rank: Rank) -> None:
    """A root is given by its rank in the default group, whatever it is in the subgroup."""
    ringcomm.init()
    group = ringcomm.new_group([2, 1])
    if rank.rank == 0:
        return
    for _ in range(2):  # the first makes the group known
        tensor = torch.full((2,), float(rank.rank))
        ringcomm.broadcast(tensor, 2, group)
        assert tensor.tolist() == [2.0, 2.0]
        ringcomm.reduce(tensor, 1, group=group)
        assert tensor.tolist() == ([4.0, 4.0] if rank.rank == 1 else [2.0, 2.0])
        with pytest.raises(ValueError, match="Global rank 0 is not part of group"):
            ringcomm.broadcast(tensor, 0, group)


def test_roots_of_subgroups() -> None:
    on_processes(roots_of_subgroups, WORLD_SIZE, backend="ring")


def messages(rank: Rank) -> None:
    n, me = rank.world_size, rank.rank
    following, previous = (me + 1) % n, (me - 1) % n
    ringcomm.init()
    subgroup = ringcomm.new_group(list(reversed(range(n))))
    got = torch.zeros(7)
    works: list[Any] = []

    def is_fast(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        before = watch.calls
        works.append(call(*args, **kwargs))
        return watch.calls == before

    with pytest.MonkeyPatch.context() as monkeypatch:
        watch = Watch(monkeypatch)
        ringcomm.barrier()
        ringcomm.barrier(subgroup)  # the first of a group makes it known
        for group in (None, subgroup):
            for tag in (0, 2**31 - 1):
                assert is_fast(ringcomm.send, given(me), following, group, tag)
                assert is_fast(ringcomm.recv, got.zero_(), previous, group=group, tag=tag)
                assert works[-1] == previous and torch.equal(got, given(previous))
                assert is_fast(ringcomm.isend, given(me), following, group, tag)
                assert is_fast(ringcomm.irecv, got.zero_(), previous, group=group, tag=tag)
                assert all(work.wait() for work in works[-2:])
                assert torch.equal(got, given(previous))
        for call in (ringcomm.send, ringcomm.isend):
            assert not is_fast(call, given(me), group_dst=following)
            assert not is_fast(ringcomm.recv, got.zero_())  # from any
            assert works[-1] == previous and torch.equal(got, given(previous))

        # Torch makes pairs of complex numbers; what is not contiguous only a Work can copy.
        numbers = torch.zeros(7, dtype=torch.complex64)
        assert not is_fast(ringcomm.send, torch.complex(given(me), given(me)), following)
        assert not is_fast(ringcomm.recv, numbers, previous)
        assert torch.equal(numbers.imag, given(previous))
        columns = torch.zeros(7, 2)
        assert not is_fast(ringcomm.send, torch.stack([given(me)] * 2, 1)[:, 0], following)
        assert not is_fast(ringcomm.recv, columns[:, 1], previous)
        assert torch.equal(columns[:, 1], given(previous)) and not columns[:, 0].any()
        columns.zero_()
        assert is_fast(ringcomm.isend, torch.stack([given(me)] * 2, 1)[:, 0], following)
        assert is_fast(ringcomm.irecv, columns[:, 1], previous)
        assert all(work.wait() for work in works[-2:])
        assert torch.equal(columns[:, 1], given(previous)) and not columns[:, 0].any()

        # Refused on this rank, raised on the other.
        if me == 0:
            with pytest.raises(ValueError, match="share memory"):
                ringcomm.recv(torch.zeros(1).expand(7), 1)
        elif me == 1:
            with pytest.raises(dist.DistBackendError, match="share memory"):
                ringcomm.send(torch.ones(1 << 20), 0)  # more than is sent unread
        with pytest.raises(ValueError, match="rank"):
            ringcomm.send(given(me), me)
        with pytest.raises(ValueError, match="tag"):
            ringcomm.recv(got, previous, tag=-1)
    ringcomm.barrier()


def test_fast_paths_of_messages() -> None:
    on_processes(messages, WORLD_SIZE, backend="ring")


def a_message_of_another_size(rank: Rank) -> None:
    ringcomm.init()
    ringcomm.barrier()
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError, match=rf"send\(count={1 << 20}.* to rank 1"):
            ringcomm.send(torch.ones(1 << 20), 1)
    elif rank.rank == 1:
        with pytest.raises(dist.DistBackendError, match=r"recv\(count=4,.* from rank 0"):
            ringcomm.recv(torch.zeros(4), 0)
    ringcomm.barrier()


def test_a_message_of_another_size() -> None:
    on_processes(a_message_of_another_size, WORLD_SIZE, backend="ring")
