"""Every collective on GPUs, against NCCL's own and against results known in advance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from gpu_suite import device
from gpus import WORLD_SIZES, Gpu, needs_gpu, on_gpus, world_sizes
from values import FLOATS, MOVED, REDUCED, assert_same_bits, ops_for, reduce_op, reduced, values

pytestmark = [needs_gpu, pytest.mark.slow]

ALGORITHMS = ["ring", "direct"]

NARROW = [torch.bfloat16, torch.float16]

# What ProcessGroupNCCL of these ops does not do, or defines otherwise: product of bools.
NCCL_OPS = {"SUM", "PRODUCT", "MIN", "MAX", "AVG"}


def counts(world_size: int, dtype: torch.dtype, op: str = "SUM") -> list[int]:
    few = [0, 1, world_size - 1, world_size + 1, 1000]
    if op != "SUM" or dtype not in (torch.float32, torch.bfloat16):
        return few
    several_slices = (3 << 20) // dtype.itemsize + 7
    return [*few, several_slices]


def inputs_of(gpu: Gpu, count: int, dtype: torch.dtype, op: str = "SUM") -> list[torch.Tensor]:
    return [values(r, count, dtype, op) for r in range(gpu.world_size)]


def all_reduce_options(op: str) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = reduce_op(op)
    return options


def exact_cases(gpu: Gpu) -> Iterator[tuple[torch.dtype, str]]:
    """What is right in every bit: low precision is rounded at each hop."""
    for dtype in REDUCED:
        hops = gpu.algorithm not in ("auto", "direct", "one_shot")
        rounds = dtype in FLOATS and dtype.itemsize < 4 and hops
        for op in ops_for(dtype):
            if op in ("MIN", "MAX") or not rounds:
                yield dtype, op


def check_all_reduce(gpu: Gpu) -> None:
    for dtype, op in exact_cases(gpu):
        for count in counts(gpu.world_size, dtype, op):
            inputs = inputs_of(gpu, count, dtype, op)
            tensor = inputs[gpu.rank].to(gpu.device, copy=True)
            gpu.ring.allreduce([tensor], all_reduce_options(op)).wait()
            case = f"all_reduce of {count} {dtype}, {op}"
            assert_same_bits(tensor.cpu(), reduced(inputs, op), case)


def check_against_nccl(gpu: Gpu) -> None:
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
        for op in NCCL_OPS - ({"AVG"} if dtype.is_floating_point else set()):
            for count in counts(gpu.world_size, dtype, op):
                tensor = values(gpu.rank, count, dtype, op).to(gpu.device, copy=True)
                theirs = tensor.clone()
                gpu.ring.allreduce([tensor], all_reduce_options(op)).wait()
                gpu.nccl.allreduce([theirs], all_reduce_options(op)).wait()
                assert_same_bits(tensor.cpu(), theirs.cpu(), f"{count} {dtype}, {op}")


def check_scattered_and_gathered(gpu: Gpu) -> None:
    n = gpu.world_size
    for dtype in MOVED:
        for count in counts(n, dtype):
            inputs = inputs_of(gpu, count, dtype)
            own = inputs[gpu.rank].to(gpu.device, copy=True)
            gathered = torch.empty(n * count, dtype=dtype, device=gpu.device)
            gpu.ring._allgather_base(gathered, own).wait()
            assert_same_bits(gathered.cpu(), torch.cat(inputs), f"all_gather of {count} {dtype}")
    for dtype, op in exact_cases(gpu):
        count = 1001
        inputs = inputs_of(gpu, n * count, dtype, op)
        options = dist.ReduceScatterOptions()
        options.reduceOp = reduce_op(op)
        output = torch.empty(count, dtype=dtype, device=gpu.device)
        own = inputs[gpu.rank].to(gpu.device, copy=True)
        gpu.ring._reduce_scatter_base(output, own, options).wait()
        expected = reduced(inputs, op).view(n, count)[gpu.rank]
        assert_same_bits(output.cpu(), expected, f"reduce_scatter of {dtype}, {op}")


def uneven(gpu: Gpu) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Collectives with counts that differ between ranks, and with views that are not contiguous."""
    n, me, device = gpu.world_size, gpu.rank, gpu.device
    parts = [values(r, 100 * r + r, torch.float32) for r in range(n)]
    outputs = [torch.empty_like(part, device=device) for part in parts]
    gpu.ring.allgather([outputs], [parts[me].to(device)]).wait()
    for output, part in zip(outputs, parts, strict=True):
        yield "all_gather", output, part

    wide = values(me, 4000, torch.float32).to(device).view(40, 100)
    gpu.ring.allreduce([wide.t()[::2]]).wait()
    expected = sum(values(r, 4000, torch.float32).view(40, 100).t()[::2] for r in range(n))
    yield "all_reduce of a view", wide.t()[::2], expected

    splits_in = [(me + r) % 3 * 50 for r in range(n)]
    splits_out = [(r + me) % 3 * 50 for r in range(n)]
    source = torch.cat([torch.full((k,), 100.0 * me + r) for r, k in enumerate(splits_in)])
    target = torch.empty(sum(splits_out), device=device)
    gpu.ring.alltoall_base(target, source.to(device), splits_out, splits_in).wait()
    expected = torch.cat([torch.full((k,), 100.0 * r + me) for r, k in enumerate(splits_out)])
    yield "all_to_all_single", target, expected


def check_rooted_and_uneven(gpu: Gpu) -> None:
    n, me, device = gpu.world_size, gpu.rank, gpu.device
    for root in (0, n - 1):
        for count in counts(n, torch.int32):
            inputs = inputs_of(gpu, count, torch.int32)
            own = inputs[me].to(device, copy=True)
            tensor = own.clone()
            options = dist.BroadcastOptions()
            options.rootRank = root
            gpu.ring.broadcast([tensor], options).wait()
            assert_same_bits(tensor.cpu(), inputs[root], "broadcast")

            tensor = own.clone()
            options = dist.ReduceOptions()
            options.rootRank = root
            gpu.ring.reduce([tensor], options).wait()
            expected = reduced(inputs, "SUM") if me == root else inputs[me]
            assert_same_bits(tensor.cpu(), expected, "reduce")

            options = dist.GatherOptions()
            options.rootRank = root
            outputs = [[torch.empty_like(own) for _ in range(n)]] if me == root else []
            gpu.ring.gather(outputs, [own], options).wait()
            for got, sent in zip(outputs[0] if outputs else [], inputs, strict=False):
                assert_same_bits(got.cpu(), sent, "gather")

            options = dist.ScatterOptions()
            options.rootRank = root
            tensor = torch.empty_like(own)
            lists = [[one.to(device) for one in inputs]] if me == root else []
            gpu.ring.scatter([tensor], lists, options).wait()
            assert_same_bits(tensor.cpu(), inputs[me], "scatter")
    for name, got, expected in uneven(gpu):
        assert_same_bits(got.cpu(), expected, name)


def check_messages(gpu: Gpu) -> None:
    """All send first, to the next rank and back, one by one and in batches."""
    n, me, device = gpu.world_size, gpu.rank, gpu.device
    for count in (1, 1000, 1 << 20):
        sent = values(me, count, torch.float32).to(device)
        got = [torch.empty_like(sent) for _ in range(2)]
        gpu.ring._start_coalescing()
        gpu.ring.send([sent], (me + 1) % n, 0)
        gpu.ring.send([sent], (me - 1) % n, 0)
        gpu.ring.recv([got[0]], (me - 1) % n, 0)
        gpu.ring.recv([got[1]], (me + 1) % n, 0)
        gpu.ring._end_coalescing().wait()
        for tensor, peer in zip(got, ((me - 1) % n, (me + 1) % n), strict=True):
            assert_same_bits(tensor.cpu(), values(peer, count, torch.float32), "batched messages")
        works = [
            gpu.ring.send([sent], (me + 1) % n, 0),
            gpu.ring.recv([got[0].zero_()], (me - 1) % n, 0),
        ]
        for work in works:
            work.wait()
        expected = values((me - 1) % n, count, torch.float32)
        assert_same_bits(got[0].cpu(), expected, "messages one by one")


def errors(gpu: Gpu) -> list[tuple[float, float, float]]:
    """Of each narrow dtype: the mean errors of ring and NCCL, and the ring's largest.

    Against the exact sums, in ulps of these.
    """
    found = []
    for dtype in NARROW:
        inputs = []
        for r in range(gpu.world_size):
            generator = torch.Generator().manual_seed(r)
            inputs.append(torch.randn(1 << 18, generator=generator).to(dtype))
        exact = torch.stack([one.double() for one in inputs]).sum(0)
        exponent = torch.floor(torch.log2(exact.abs().clamp(min=2.0**-12)))
        ulp = torch.finfo(dtype).eps * 2.0**exponent
        ours, theirs = (inputs[gpu.rank].to(gpu.device, copy=True) for _ in range(2))
        gpu.ring.allreduce([ours]).wait()
        gpu.nccl.allreduce([theirs]).wait()
        ring, nccl = (((got.cpu().double() - exact).abs() / ulp) for got in (ours, theirs))
        found.append((ring.mean().item(), nccl.mean().item(), ring.max().item()))
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@world_sizes(*WORLD_SIZES)
@pytest.mark.parametrize(
    "check",
    [
        check_all_reduce,
        check_against_nccl,
        check_scattered_and_gathered,
        check_rooted_and_uneven,
        check_messages,
    ],
)
def test_collectives(check, world_size: int, algorithm: str) -> None:
    on_gpus(check, world_size, algorithm=algorithm, with_nccl=check is check_against_nccl)


@world_sizes(1)
@pytest.mark.parametrize(
    "check", [check_all_reduce, check_scattered_and_gathered, check_rooted_and_uneven]
)
def test_a_rank_alone(check, world_size: int) -> None:
    on_gpus(check, world_size)


@pytest.mark.parametrize("channels", [1, 3])
@world_sizes(2)
def test_any_number_of_channels(world_size: int, channels: int) -> None:
    on_gpus(check_scattered_and_gathered, world_size, algorithm="ring", channels=channels)


@world_sizes(*WORLD_SIZES)
def test_a_ring_rounds_as_nccl_does(world_size: int) -> None:
    """Both round at every hop, but add in different orders: equal in the mean, not one by one."""
    for found in on_gpus(errors, world_size, algorithm="ring", with_nccl=True):
        for ring, nccl, _ in found:
            assert ring <= 1.05 * nccl


@world_sizes(*WORLD_SIZES)
def test_direct_rounds_once(world_size: int) -> None:
    for found in on_gpus(errors, world_size, algorithm="direct", with_nccl=True):
        for _, _, largest in found:
            assert largest <= 0.5 + 1e-3  # the sum in float32 is not quite the exact one


def refusal(gpu: Gpu) -> None:
    elsewhere = [torch.empty(4, device=device.OTHER) for _ in range(gpu.world_size)]
    with pytest.raises((ValueError, NotImplementedError), match=r"one device|on meta"):
        gpu.ring.allgather([elsewhere], [torch.ones(4, device=gpu.device)])
    tensor = torch.ones(4, device=gpu.device)
    gpu.ring.allreduce([tensor], dist.AllreduceOptions()).wait()
    assert tensor.cpu().tolist() == [gpu.world_size] * 4


@world_sizes(2)
def test_a_refusal_leaves_the_group_usable(world_size: int) -> None:
    on_gpus(refusal, world_size)
