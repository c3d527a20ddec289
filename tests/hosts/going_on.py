"""A rank that works, goes on without those that die, and prints with which."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import ringcomm
from hosts.report import report

TIMEOUT = timedelta(seconds=float(sys.argv[1]))  # of shrinking


def work(members: list[int]) -> None:
    """Until a rank is gone."""
    report(members)
    expected = float(sum(members))
    own = float(os.environ["RANK"])
    while True:
        for count in (3, 200_000):
            tensor = torch.full((count,), own)
            dist.all_reduce(tensor)
            assert tensor[-1] == expected


def members_of() -> list[int]:
    members = [0] * dist.get_world_size()
    dist.all_gather_object(members, int(os.environ["RANK"]))
    return members


def main() -> None:
    store = None
    if "STORE_PORT" in os.environ:
        store = dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), is_master=False)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("ring", store=store, rank=rank, world_size=world_size)
    while True:
        try:
            work(members_of())
        except dist.DistBackendError:
            try:
                ringcomm.shrink(timeout=TIMEOUT)
            except dist.DistBackendError as error:
                report(str(error))
                return


main()
