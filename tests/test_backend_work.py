"""Works: waiting, futures, order, what the profiler sees."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import values
from ranks import Rank, on_processes
from torch._C._distributed_c10d import AllgatherOptions
from torch.profiler import ProfilerActivity, profile
from values import assert_same_bits

COUNT = 20_000


# torch 2.11's own Work.exception() cannot convert what it returns.
TELLS_EXCEPTIONS = torch.__version__ >= (2, 12)


def own(rank: Rank, scale: float = 1.0) -> torch.Tensor:
    return torch.full((COUNT,), scale * (rank.rank + 1))


def total(rank: Rank, scale: float = 1.0) -> torch.Tensor:
    return torch.full((COUNT,), scale * sum(range(1, rank.world_size + 1)))


def a_work(rank: Rank) -> None:
    tensor = own(rank)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.is_completed() and work.is_success()
    assert not TELLS_EXCEPTIONS or work.exception() is None
    assert_same_bits(tensor, total(rank))
    (result,) = work.result()
    assert result.data_ptr() == tensor.data_ptr()
    assert work.get_future().done()
    assert work.get_future().value()[0].data_ptr() == tensor.data_ptr()

    outputs = [torch.empty(COUNT) for _ in range(rank.world_size)]
    future = dist.all_gather(outputs, own(rank), async_op=True).get_future()
    assert [t.data_ptr() for t in future.wait()] == [t.data_ptr() for t in outputs]

    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed()


def test_work() -> None:
    on_processes(a_work, 2, backend="ring")


def small_works(rank: Rank) -> None:
    """They end with the call where all ranks come at once. A call never waits for a late one."""
    for late in range(3):  # works that are under way together
        tensors = [torch.full((3,), float(rank.rank + i)) for i in range(4)]
        dist.barrier()
        if rank.rank == late % 2:
            time.sleep(0.5)
        began = time.monotonic()
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        took = time.monotonic() - began
        for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
            work.wait()
            assert work.is_success() and tensor.tolist() == [2.0 * i + 1] * 3
        assert took < 0.4, "the call returned before the other rank came"
    seen = []
    for _ in range(200):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        seen.append(work.is_completed())
        work.wait()
    assert any(seen)


def test_small_works() -> None:
    on_processes(small_works, 2, backend="ring")


def sync_works(rank: Rank) -> None:
    """What torch.distributed keeps to itself of calls that are not asynchronous."""
    group = dist.distributed_c10d._get_default_group()
    n, whole = rank.world_size, torch.empty(rank.world_size * COUNT)

    def sync(options: object) -> object:
        options.asyncOp = False  # type: ignore[attr-defined]
        return options

    tensor = own(rank)
    pairs = [
        (group.allreduce([tensor], sync(dist.AllreduceOptions())), tensor),
        (group.broadcast([tensor], sync(dist.BroadcastOptions())), tensor),
        (group._allgather_base(whole, tensor, sync(AllgatherOptions())), whole),
        (
            group._reduce_scatter_base(
                tensor, whole.clone() / n, sync(dist.ReduceScatterOptions())
            ),
            tensor,
        ),
    ]
    for work, output in pairs:
        assert work.is_completed() and work.is_success() and work.wait()
        assert [each.data_ptr() for each in work.result()] == [output.data_ptr()]
        assert work.get_future().wait()[0].data_ptr() == output.data_ptr()
    assert_same_bits(tensor, total(rank))
    assert_same_bits(whole, total(rank).repeat(n))


def test_calls_that_are_not_asynchronous_give_works_too() -> None:
    on_processes(sync_works, 2, backend="ring")


def complete_at_once(rank: Rank) -> None:
    for _ in range(1000):
        work = dist.all_reduce(own(rank)[:9000], async_op=True)
        work.wait()
        assert work.get_future().done()


def test_the_future_of_what_is_complete_is_done() -> None:
    on_processes(complete_at_once, 2, backend="ring")


def polled(rank: Rank) -> None:
    tensor = own(rank)
    work = dist.all_reduce(tensor, async_op=True)
    deadline = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < deadline, "an operation must go on while nobody waits for it"
        time.sleep(0.001)
    assert_same_bits(tensor, total(rank))


def test_operations_go_on_while_no_thread_waits() -> None:
    on_processes(polled, 3, backend="ring")


def many_in_order(rank: Rank) -> None:
    tensors = [own(rank, i) for i in range(60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    between = own(rank, 1000)
    dist.all_reduce(between)  # waits for its turn behind the sixty
    assert all(work.is_completed() for work in works)
    assert_same_bits(between, total(rank, 1000))
    for i in reversed(range(60)):
        works[i].wait()
        assert_same_bits(tensors[i], total(rank, i))


def test_many_operations_in_order() -> None:
    on_processes(many_in_order, 3, backend="ring")


def wait_with_timeout(rank: Rank) -> None:
    # A new group has no worker yet, so a thread that waits could be the first to run the operation.
    for attempt in range(8):
        group = dist.new_group()
        tensor = own(rank)
        if rank.rank == 0:
            work = dist.all_reduce(tensor, group=group, async_op=True)
            started = time.monotonic()
            with pytest.raises(dist.DistBackendError, match=r"rank 0 .* Timed out after 50 ms"):
                work.wait(timeout=timedelta(milliseconds=50))
            assert 0.04 < time.monotonic() - started < 5
            assert not work.is_completed()
            rank.store.set(f"tried {attempt}", "1")
            assert work.wait(timeout=timedelta(seconds=30))
        else:
            rank.store.wait([f"tried {attempt}"])
            dist.all_reduce(tensor, group=group)
        assert_same_bits(tensor, total(rank))


def test_wait_gives_up_and_the_operation_goes_on() -> None:
    on_processes(wait_with_timeout, 2, backend="ring")


def callbacks(rank: Rank) -> None:
    tensor = own(rank)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    halved = future.then(lambda done: done.value()[0] / 2).then(lambda done: done.value() + 1)
    assert_same_bits(halved.wait(), total(rank) / 2 + 1)

    def gather_too(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        gathered = torch.empty(rank.world_size)
        dist.all_gather_into_tensor(gathered, done.value()[0][:1] + rank.rank)
        work = dist.all_reduce(gathered, async_op=True)
        work.wait()
        return gathered

    future = dist.all_reduce(own(rank), async_op=True).get_future().then(gather_too)
    first = total(rank)[0].item()
    expected = rank.world_size * (first + torch.arange(float(rank.world_size)))
    assert_same_bits(future.wait(), expected)


def test_callbacks_may_wait_for_further_collectives() -> None:
    on_processes(callbacks, 2, backend="ring")


def failing_future(rank: Rank) -> str:
    tensor = torch.ones(3 + rank.rank)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    with pytest.raises(RuntimeError, match="the ranks disagree"):
        future.wait()
    work = dist.all_reduce(tensor, async_op=True)
    with pytest.raises(dist.DistBackendError, match="the ranks disagree") as raised:
        work.wait()
    assert work.is_completed() and not work.is_success()
    return str(work.exception() if TELLS_EXCEPTIONS else raised.value)


def test_errors_reach_future_and_work() -> None:
    for text in on_processes(failing_future, 2, backend="ring"):
        assert "rank 0 called all_reduce(count=3" in text
        assert "rank 1 called all_reduce(count=4" in text


def sequence_numbers(rank: Rank) -> list[int]:
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(2))
    dist.barrier()
    dist.all_reduce_coalesced([torch.ones(1), torch.ones(2)])
    after = group._get_sequence_number_for_group()
    return [before, after]


@values.torch_2_14
def test_sequence_numbers() -> None:
    first, second = on_processes(sequence_numbers, 2, backend="ring")
    assert first == second
    assert first[1] - first[0] >= 3


def profiled(rank: Rank) -> dict[str, list[object]]:
    n = rank.world_size
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_reduce(torch.ones(2, 2), async_op=True).wait()
        dist.broadcast(torch.ones(7), 0)
        dist.all_gather_into_tensor(torch.empty(4 * n), torch.ones(4))
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * n))
        dist.barrier()
        if rank.rank == 0:
            dist.send(torch.ones(6), 1)
        else:
            dist.recv(torch.ones(6), 0)
    shapes: dict[str, list[object]] = {}
    for event in profiler.events():
        if event.name.startswith("ring:"):
            shapes.setdefault(event.name, []).append(event.input_shapes)
    return shapes


def test_profiler_events_carry_names_and_shapes() -> None:
    first, second = on_processes(profiled, 2, backend="ring")
    assert first["ring:all_reduce"] == [[[3, 5]], [[2, 2]]]
    assert first["ring:broadcast"] == [[[7]]]
    assert first["ring:_all_gather_base"] == [[[4]]]
    assert first["ring:_reduce_scatter_base"] == [[[4]]]
    assert len(first["ring:barrier"]) == 1
    assert first["ring:send"] == [[[6]]]
    assert second["ring:recv"] == [[[6]]]
