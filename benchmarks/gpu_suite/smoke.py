"""First contact: 2 ranks and an all-reduce of 1 KiB, each step announced: as messages of 1 channel,
then by a fused kernel.

python -m gpu_suite.smoke

If it hangs, the last line of each rank says where; the watchdog names the rank that is waited for
after 15 s, and after 32 s all stacks are written.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time

import torch
import torch.distributed as dist

from gpu_suite import device, groups, one_gpu
from ringcomm.groups import launched
from ringcomm.launch import RanksFailedError, run_ranks

_WORLD_SIZE = 2
_STACKS_AFTER = 32


def rank_main() -> None:
    faulthandler.dump_traceback_later(_STACKS_AFTER, exit=True)
    rank, began = int(os.environ["RANK"]), time.monotonic()

    def say(what: str) -> None:
        line = f"rank {rank}, {time.monotonic() - began:5.2f} s: {what}\n"
        os.write(1, line.encode())  # whole, as the other rank writes there, too

    own = device.own(rank)
    say(f"has {device.label()}, NCCL {device.nccl_version()}")
    dist.init_process_group("gloo", timeout=groups.TIMEOUT)
    store = dist.distributed_c10d._get_default_store()
    wrong = 0
    for executor in ("messages", "fused"):
        settings = groups.Settings(
            one_gpu.ctas(_WORLD_SIZE), algorithm="ring", channels=1, executor=executor
        )
        ring = groups.ring(store, rank, _WORLD_SIZE, settings)
        say(f"is in the group, {executor}")
        tensor = torch.arange(256, dtype=torch.float32, device=own)
        work = ring.allreduce([tensor])
        say("has enqueued an all_reduce")
        work.wait(2 * groups.TIMEOUT)  # on the host, with the watchdog's words if it fails
        wrong += int((tensor.cpu() != _WORLD_SIZE * torch.arange(256)).sum())
        say(f"has the sum, {wrong} elements wrong so far")
        ring.shutdown()
    dist.destroy_process_group()
    say("is done")
    if wrong:
        sys.exit(1)


def main() -> int:
    if launched():
        rank_main()
        return 0
    if problem := one_gpu.missing(_WORLD_SIZE):
        print(problem)
        return 1
    one_gpu.prepare(_WORLD_SIZE)
    try:
        run_ranks(["-m", "gpu_suite.smoke"], _WORLD_SIZE)
    except RanksFailedError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
