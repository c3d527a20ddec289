"""A rank that adds 16-bit floats with ranks of two hosts, and says how many sums are not rounded
once on each host, and once more when the hosts' sums are added.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from hosts.cases import uneven
from hosts.report import report


def total(inputs: list[torch.Tensor]) -> torch.Tensor:
    """Added in float32, one after the other, and rounded at the end."""
    result = inputs[0].float()
    for each in inputs[1:]:
        result = result + each.float()
    return result.to(inputs[0].dtype)


def main() -> None:
    dist.init_process_group("ring")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    hosts: list[str] = [""] * world_size
    dist.all_gather_object(hosts, os.environ["RINGCOMM_HOSTID"])
    for dtype in (torch.bfloat16, torch.float16):
        inputs = [uneven(each, 100_003, dtype) for each in range(world_size)]
        of_hosts = [
            total([inputs[each] for each in range(world_size) if hosts[each] == host])
            for host in dict.fromkeys(hosts)
        ]
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        report(int((tensor != total(of_hosts)).sum()))
    dist.destroy_process_group()


main()
