"""ringcomm.cost.device_calls: the counts of C++ in Python, what they cost, and the defaults."""

from __future__ import annotations

import doctest

import pytest
import torch
from compiled import tools

from ringcomm import cost
from ringcomm._C import streams
from ringcomm.cost import device
from ringcomm.options import Options

MIB = 2**20


def test_the_documented_table():
    assert doctest.testmod(device).attempted > 0
    assert doctest.testmod(device).failed == 0


def test_an_all_reduce_of_64_mib():
    """Its chunks of 16 MiB go in 2 slices through 3 steps that add, and whole through 3 more."""
    calls = cost.device_calls("all_reduce", "ring", 4, 64 * MIB)
    assert (calls.groups, calls.launches) == (9, 9)
    assert (calls.sends, calls.recvs) == (9, 9)
    assert (calls.reductions, calls.copies) == (6, 0)


def test_seconds_are_calls_times_their_costs():
    model = tools()
    calls = cost.device_calls("all_gather", "ring", 4, 64 * MIB)
    assert calls.host_seconds == pytest.approx(
        model.CALL_SECONDS
        + calls.launches * model.LAUNCH_SECONDS
        + calls.reductions * model.REDUCTION_SECONDS
        + calls.copies * model.COPY_SECONDS
        + (calls.records + calls.waits) * model.EVENT_SECONDS
    )


def test_channels_share_groups_and_launch_a_kernel_each():
    layout = cost.DeviceLayout(num_channels=2)
    calls = cost.device_calls("all_reduce", "direct", 4, 512 * MIB, layout=layout)
    assert calls.launches == 2 * calls.groups


def test_what_auto_chooses_depends_on_the_dtype():
    def count(algorithm, dtype):
        return cost.device_calls("all_reduce", algorithm, 4, 64 * MIB, dtype=dtype)

    assert count("auto", torch.float32) == count("ring", torch.float32)
    assert count("auto", torch.bfloat16) == count("direct", torch.bfloat16)


def test_only_the_root_of_a_broadcast_sends_to_all():
    def sends(rank):
        return cost.device_calls("broadcast", "direct", 8, 1024, rank=rank, root=3).sends

    assert [sends(rank) for rank in range(8)] == [7 if rank == 3 else 0 for rank in range(8)]


@pytest.mark.parametrize(
    "collective",
    ["all_reduce", "reduce_scatter", "reduce", "all_gather", "gather", "scatter", "broadcast"],
)
def test_a_rank_alone_sends_nothing(collective):
    calls = cost.device_calls(collective, "auto", 1, 1024)
    assert calls.groups == calls.sends == calls.records == calls.waits == 0


def test_the_defaults_of_a_group_are_those_of_the_layout():
    layout, model = streams.Layout(), tools()
    assert layout.num_channels == Options.channels
    assert layout.slice_nbytes == Options.slice_nbytes
    per_slice = model.LAUNCH_SECONDS + model.REDUCTION_SECONDS + 4 * model.EVENT_SECONDS
    assert layout.min_slice_nbytes == pytest.approx(per_slice * model.WIRE_BANDWIDTH, abs=1)


def test_slices_are_never_larger_than_the_user_says():
    assert streams.Layout(slice_nbytes=MIB).min_slice_nbytes == MIB


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_sum", "ring", 4, 64), "collective must be one of 'all_reduce', "),
        (("barrier", "ring", 4, 64), "got 'barrier'"),
        (("all_reduce", "tree", 4, 64), "of all_reduce must be one of 'auto', 'ring'"),
        (("all_reduce", "ring", 0, 64), "between 1 and 1024, got 0"),
        (("all_reduce", "ring", 4, 65), "nbytes must be a multiple of 4 for all_reduce, got 65"),
        (("all_gather", "ring", 4, 68), "nbytes must be a multiple of 16 for all_gather, got 68"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        cost.device_calls(*arguments)


def test_ranks_outside_of_the_group():
    with pytest.raises(ValueError, match="rank must be between 0 and 3, got 4"):
        cost.device_calls("all_reduce", "ring", 4, 64, rank=4)
    with pytest.raises(ValueError, match="root must be between 0 and 3, got -1"):
        cost.device_calls("broadcast", "chain", 4, 64, root=-1)
