"""One rank of two whose calls fail at every point: python injected.py RANK PORT OPTIONS-IN-JSON.

Rank 1's library fails once, at point 1, 2, 3 ... of each call, until there is no such point any
more (tests/faults/injector.cpp). What became of the call is compared between the ranks, and then
both make further calls, whose results show whether they are still the same calls of the program.
Rank 0 prints what it has counted, and each fault in a sentence.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringcomm
from ringcomm import _C
from ringcomm.records import read

TIMEOUT = timedelta(seconds=20)
VICTIM = 1
AGAIN = "may be made again"  # what an error says after which only this rank has to call again

# call(group, step) makes one call whose values depend on the step; whether the result is right.
Call = Callable[[Any, int], bool]


def summed(make: Callable[[torch.Tensor, Any], Any], count: int) -> Call:
    def call(group: Any, step: int) -> bool:
        x = torch.full((count,), float(step))
        work = make(x, group)
        if work is not None:
            work.wait()
        return bool((x == 2.0 * step).all())

    return call


def moved(make: Callable[[torch.Tensor, torch.Tensor, Any], Any], count: int) -> Call:
    """Of calls that bring both ranks all ranks' values."""

    def call(group: Any, step: int) -> bool:
        rank = dist.get_rank()
        own = torch.full((count,), float(2 * step + rank))
        out = torch.zeros(2 * count)
        work = make(out, own, group)
        if work is not None:
            work.wait()
        wanted = torch.tensor([2.0 * step, 2.0 * step + 1]).repeat_interleave(count)
        return bool((out == wanted).all())

    return call


def scattered(x: torch.Tensor, group: Any) -> None:
    out = torch.empty_like(x)
    ringcomm.reduce_scatter_tensor(out, x.repeat(2), group=group)
    x.copy_(out)


def scattered_list(x: torch.Tensor, group: Any) -> None:
    out = torch.empty_like(x)
    ringcomm.reduce_scatter(out, [x, x.clone()], group=group)
    x.copy_(out)


def scattered_together(x: torch.Tensor, group: Any) -> None:
    out = torch.empty_like(x)
    with dist._coalescing_manager(group=group):
        dist.reduce_scatter_tensor(out, x.repeat(2), group=group)
    x.copy_(out)


def reduced(x: torch.Tensor, group: Any) -> None:
    for root in (0, 1):
        out = x.clone()
        ringcomm.reduce(out, root, group=group)
        if root == dist.get_rank():
            result = out
    x.copy_(result)


def gathered(out: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    for root in (0, 1):
        is_root = root == dist.get_rank()
        ringcomm.gather(own, list(out.chunk(2)) if is_root else None, root, group=group)


def gathered_single(out: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    for root in (0, 1):
        ringcomm.gather_single(own, out if root == dist.get_rank() else None, root, group=group)


def gathered_together(out: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    with dist._coalescing_manager(group=group):
        dist.all_gather_into_tensor(out, own, group=group)


def gathered_coalesced(out: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    ringcomm.all_gather_coalesced([[part] for part in out.chunk(2)], [own], group=group)


def exchanged_lists(out: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    ringcomm.all_to_all(list(out.chunk(2)), [own, own.clone()], group=group)


def exchanged_splits(out: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    splits = [own.numel()] * 2
    ringcomm.all_to_all_single(out, own.repeat(2), splits, splits, group=group)


def exchanged(count: int, begin: Callable[[str, torch.Tensor, int, Any], Any], sends: int) -> Call:
    def call(group: Any, step: int) -> bool:
        rank = dist.get_rank()
        x = torch.full((count,), float(step) if rank == sends else 0.0)
        work = begin("send" if rank == sends else "recv", x, 1 - rank, group)
        if work is not None:
            work.wait()
        return bool((x == step).all())

    return call


def begin_message(kind: str, x: torch.Tensor, peer: int, group: Any) -> Any:
    return (ringcomm.isend if kind == "send" else ringcomm.irecv)(x, peer, group=group)


def message(kind: str, x: torch.Tensor, peer: int, group: Any) -> None:
    (ringcomm.send if kind == "send" else ringcomm.recv)(x, peer, group=group)


def message_from_any(kind: str, x: torch.Tensor, peer: int, group: Any) -> None:
    ringcomm.send(x, peer, group=group) if kind == "send" else ringcomm.recv(x, group=group)


def spread(kind: str, x: torch.Tensor, peer: int, group: Any) -> None:
    """A scatter from the rank that sends."""
    root, parts = (1 - peer, [x, x.clone()]) if kind == "send" else (peer, None)
    ringcomm.scatter(torch.empty_like(x) if parts else x, parts, root, group=group)


def batch(kind: str, x: torch.Tensor, peer: int, group: Any) -> Any:
    function = dist.isend if kind == "send" else dist.irecv
    (work,) = ringcomm.batch_isend_irecv([dist.P2POp(function, x, peer, group)])
    return work


def both_ways(group: Any, step: int) -> bool:
    rank = dist.get_rank()
    own = torch.tensor([float(2 * step), float(2 * step + 1)]) + 10 * rank
    out = torch.zeros(2)
    ringcomm.all_to_all_single(out, own, group=group)
    return out.tolist() == [2.0 * step + rank, 2.0 * step + rank + 10]


def coalesced(group: Any, step: int) -> bool:
    tensors = [torch.full((n,), float(step + n)) for n in (3, 5000)]
    ringcomm.all_reduce_coalesced(tensors, group=group)
    return all(bool((t == 2.0 * (step + t.numel())).all()) for t in tensors)


def sparse(group: Any, step: int) -> bool:
    x = torch.sparse_coo_tensor([[dist.get_rank()]], [float(step)], (2,))
    dist.all_reduce(x, group=group)
    return x.to_dense().tolist() == [step, step]


def parts(group: Any, step: int) -> bool:
    own = [torch.full((3,), float(part), dtype=torch.bfloat16) for part in (step % 64, 1)]
    return ringcomm.sum_of_parts(own, group).tolist() == [2.0 * (step % 64) + 2] * 3


def barrier(group: Any, step: int) -> bool:
    ringcomm.barrier(group)
    return True


def monitored_barrier(group: Any, step: int) -> bool:
    ringcomm.monitored_barrier(group)
    return True


def stragglers(group: Any, step: int) -> bool:
    return isinstance(ringcomm.stragglers(group, last=20), list)


def objects(group: Any, step: int) -> bool:
    rank, given = dist.get_rank(), [None, None]
    ringcomm.all_gather_object(given, (step, rank), group=group)
    return given == [(step, 0), (step, 1)]


def objects_of_roots(group: Any, step: int) -> bool:
    """Rank 0 gathers, rank 1 sends to all, rank 0 to each."""
    rank, own = dist.get_rank(), [None]
    given = [None, None] if rank == 0 else None
    ringcomm.gather_object((step, rank), given, 0, group=group)
    everybodys = [step if rank == 1 else None]
    ringcomm.broadcast_object_list(everybodys, 1, group=group)
    ringcomm.scatter_object_list(own, [step, step + 1] if rank == 0 else [None], 0, group=group)
    is_gathered = given is None or given == [(step, 0), (step, 1)]
    return is_gathered and everybodys == [step] and own == [step + rank]


def objects_in_messages(group: Any, step: int) -> bool:
    given = [step]
    if dist.get_rank() == VICTIM:
        ringcomm.send_object_list(given, 0, group=group)
    else:
        given = [None]
        ringcomm.recv_object_list(given, VICTIM, group=group)
    return given == [step]


def calls(counts: list[int]) -> dict[str, Call]:
    found: dict[str, Call] = {
        "barrier": barrier,
        "monitored barrier": monitored_barrier,
        "all_to_all": both_ways,
        "coalesced": coalesced,
        "sparse all_reduce": sparse,
        "sum of parts": parts,
        "stragglers": stragglers,
        "objects": objects,
        "objects of roots": objects_of_roots,
        "objects in send and recv": objects_in_messages,
    }
    for count in counts:
        direct = summed(lambda x, g: ringcomm.all_reduce(x, group=g), count)
        found |= {
            f"all_reduce of {count}": direct,
            f"dist.all_reduce of {count}": summed(lambda x, g: dist.all_reduce(x, group=g), count),
            f"async all_reduce of {count}": summed(
                lambda x, g: ringcomm.all_reduce(x, group=g, async_op=True), count
            ),
            f"strided all_reduce of {count}": summed(strided_sum, count),
            f"reduce_scatter of {count}": summed(scattered, count),
            f"all_gather of {count}": moved(
                lambda out, own, g: ringcomm.all_gather_into_tensor(out, own, group=g), count
            ),
            f"all_gather of a list of {count}": moved(
                lambda out, own, g: ringcomm.all_gather(list(out.chunk(2)), own, group=g), count
            ),
            f"broadcast of {count}": exchanged(
                count, lambda _, x, __, g: ringcomm.broadcast(x, 0, group=g), 0
            ),
            f"reduce of {count}": summed(reduced, count),
            f"reduce_scatter of a list of {count}": summed(scattered_list, count),
            f"coalesced reduce_scatter of {count}": summed(scattered_together, count),
            f"gather of {count}": moved(gathered, count),
            f"gather_single of {count}": moved(gathered_single, count),
            f"coalesced all_gather of {count}": moved(gathered_together, count),
            f"all_gather_coalesced of {count}": moved(gathered_coalesced, count),
            f"all_to_all of lists of {count}": moved(exchanged_lists, count),
            f"all_to_all with splits of {count}": moved(exchanged_splits, count),
        }
        for sends in (0, 1):
            whose = "victim sends" if sends == VICTIM else "victim receives"
            found |= {
                f"send and recv of {count}, {whose}": exchanged(count, message, sends),
                f"isend and irecv of {count}, {whose}": exchanged(count, begin_message, sends),
                f"a batch of {count}, {whose}": exchanged(count, batch, sends),
                f"send and recv from any rank of {count}, {whose}": exchanged(
                    count, message_from_any, sends
                ),
                f"scatter of {count}, {whose}": exchanged(count, spread, sends),
            }
    return found


def strided_sum(x: torch.Tensor, group: Any) -> None:
    columns = torch.stack([x, x], 1)
    dist.all_reduce(columns[:, 0], group=group)
    x.copy_(columns[:, 0])


class Rank:
    def __init__(self, rank: int, port: int, later: int) -> None:
        self.rank = rank
        self.later = later
        self.injector = ctypes.CDLL(None)
        if not self.injector.injector_watch(_C.__file__.encode()):
            raise RuntimeError("the injector does not find the library")
        url = f"tcp://127.0.0.1:{port}"
        # Between hosts a default group of ring would listen meanwhile, and the point be in that.
        backend = "gloo" if "RINGCOMM_HOSTID" in os.environ else "ring"
        dist.init_process_group(backend, init_method=url, rank=rank, world_size=2, timeout=TIMEOUT)
        # A connection of its own: links between hosts use the group's, which a wait would block.
        own = dist.TCPStore("127.0.0.1", port, is_master=False)
        own.set_timeout(10 * TIMEOUT)  # longer than a call, whose own error says more
        self.store = dist.PrefixStore("injected", own)
        self.num_exchanged = 0
        self.step = 0
        self.counted: Counter[str] = Counter()
        self.faults: list[str] = []
        self.folder = tempfile.TemporaryDirectory()
        self.group: Any = None
        self.make_group()

    def make_group(self) -> None:
        if self.group is not None:
            dist.destroy_process_group(self.group)
        self.group = ringcomm.new_group(timeout=TIMEOUT, reproducible="world")  # for sums of parts

    def exchange(self, own: Any) -> list[Any]:
        """What both ranks say, by rank; returns when both have."""
        self.num_exchanged += 1
        self.store.set(f"{self.num_exchanged}/{self.rank}", json.dumps(own))
        return [json.loads(self.store.get(f"{self.num_exchanged}/{r}")) for r in range(2)]

    def made(self, call: Call, step: int) -> str:
        """What became of a call: "right", "wrong", or the error."""
        try:
            return "right" if call(self.group, step) else "wrong"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def made_injected(self, call: Call, point: int) -> tuple[str, bool]:
        self.exchange("ready")
        if self.rank == VICTIM:
            self.injector.injector_arm(point)
        outcome = self.made(call, self.step)
        reached = self.rank == VICTIM and bool(self.injector.injector_disarm())
        if AGAIN in outcome and self.rank == VICTIM:
            outcome = self.made(call, self.step)
        return outcome, reached

    def fail_at(self, name: str, call: Call, point: int) -> bool:
        """Whether there is such a point."""
        self.step += 1
        both = self.exchange(self.made_injected(call, point))
        outcomes = [outcome for outcome, _ in both]
        further = []
        add_up = summed(lambda x, g: dist.all_reduce(x, group=g), 5)
        for n in range(self.later):
            further.append(self.made(add_up, self.step + 1 + n))
            if further[-1] != "right":
                break
        self.step += self.later  # the ranks may have ended at different calls
        later = [said[-1] for said in self.exchange(further)]
        if both[VICTIM][1]:
            self.judge(f"{name}, point {point}", outcomes, later)
        if later != ["right", "right"]:
            self.make_group()
        return bool(both[VICTIM][1])

    def compare_records(self, name: str) -> None:
        """Both flight records count calls and messages alike, whatever failed before."""
        record = read(Path(ringcomm.flight.dump(f"{self.folder.name}/record")))
        own: dict[str, int] = {}
        for call in record.calls:
            is_own = (call.group + " ").startswith(self.group.group_name + " ")
            if is_own and "from any" not in name:  # what it was refused says not from whom
                own[call.group] = max(call.sequence, own.get(call.group, 0))
        both = self.exchange(own)
        if both[0] != both[1]:
            self.faults.append(f"after {name} the flight records count differently: {both}")

    def judge(self, where: str, outcomes: list[str], later: list[str]) -> None:
        works = later == ["right", "right"]
        is_ended = "right" not in later and "wrong" not in later
        if "wrong" in outcomes or not (works or is_ended):
            kind = "silently wrong"
        elif any("Timed out" in text for text in [*outcomes, *later]):
            kind = "not raised elsewhere"
        elif is_ended:
            kind = "said by ending the group"
        elif outcomes == ["right", "right"]:
            kind = "done"
        elif "right" not in outcomes:
            kind = "raised on both ranks"
        elif "recv" in where or "batch" in where:
            kind = "a send was done, and its receiver raised"
        else:
            kind = "raised on one rank, and the group works"
        self.counted[kind] += 1
        if kind in (
            "silently wrong",
            "not raised elsewhere",
            "raised on one rank, and the group works",
        ):
            self.faults.append(f"{where}: {kind}: {outcomes}, then {later}"[:600])
            if self.rank == 0:
                print(self.faults[-1], file=sys.stderr, flush=True)

    def set_up(self) -> None:
        """Making a group fails at every point."""

        def make(_: Any, step: int) -> bool:
            store = dist.PrefixStore(f"group {step}", self.store)
            group = ringcomm.ProcessGroupRing(store, self.rank, 2, TIMEOUT)
            self.injector.injector_disarm()
            x = torch.full((3,), float(step))
            group.allreduce([x]).wait()
            return x.tolist() == [2.0 * step] * 3

        self.injector.injector_spare_python(1)
        self.all_points("making a group", make)
        self.injector.injector_spare_python(0)

    def shrink(self, stride: int) -> None:
        """Making a group of those that live, here all, fails at every point, or some."""
        points = itertools.count()

        def go_on(group: Any, step: int) -> bool:
            if self.rank != VICTIM and next(points) % 2 == 0:
                time.sleep(0.1)  # the victim fails before this rank comes
            self.group = ringcomm.shrink(group)
            self.injector.injector_disarm()
            x = torch.full((3,), float(step))
            ringcomm.all_reduce(x, group=self.group)
            return x.tolist() == [2.0 * step] * 3

        self.injector.injector_spare_python(1)
        self.all_points("shrinking", go_on, stride, before_each=self.make_group)
        self.injector.injector_spare_python(0)

    def all_points(
        self,
        name: str,
        call: Call,
        stride: int = 1,
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        point = 1
        began = time.monotonic()
        before_each()
        while self.fail_at(name, call, point):
            point += stride
            before_each()
        self.compare_records(name)
        if self.rank == 0 and "PROGRESS" in os.environ:
            seconds = time.monotonic() - began
            print(f"{name}: {point - 1} points, {seconds:.1f} s", file=sys.stderr, flush=True)

    def without_threads(self) -> None:
        """Rank 1 can make no thread for one call, which it makes again, or never."""

        def summed_later(group: Any, step: int) -> bool:
            x = torch.full((3,), float(step))
            ringcomm.all_reduce(x, group=group, async_op=True).wait()
            return x.tolist() == [2.0 * step] * 3

        receives = exchanged(5, begin_message, 0)
        for name, call in {"async all_reduce": summed_later, "irecv": receives}.items():
            for again in (True, False):
                self.make_group()
                self.step += 1
                where = f"{name} without threads, {'made again' if again else 'never made'}"
                self.exchange("ready")
                outcome = ""
                if self.rank == VICTIM:
                    self.injector.injector_threads(0)
                    refused = self.made(call, self.step)
                    self.injector.injector_threads(1)
                    if "rank 1" not in refused or "no further thread" not in refused:
                        self.faults.append(f"{where}: {refused}")
                    outcome = self.made(call, self.step) if again else "raised"
                else:
                    outcome = self.made(call, self.step)
                both = self.exchange(outcome)
                wanted = "right"
                if not again and name != "irecv":  # a small send is done without its receiver
                    wanted = "and it has not made that call since"
                if wanted not in both[0]:
                    self.faults.append(f"{where}: {both}")
        self.faults += [fault for faults in self.exchange(self.faults)[1:] for fault in faults]
        self.make_group()

    def run(self, rounds: int, counts: list[int], names: str, stride: int) -> None:
        if names in "without threads":
            self.without_threads()
        for round_ in range(rounds):
            for name, call in calls(counts).items():
                if names in name:
                    self.make_group()
                    # The first call of a group needs more. In every second round each call is one.
                    fresh = {"before_each": self.make_group} if round_ % 2 == 1 else {}
                    # Each attempt adds to the record that it writes, and so adds points.
                    every = 97 if call is stragglers else 1
                    self.all_points(f"{name}, round {round_}", call, every, **fresh)
            if names in "making a group":
                self.set_up()
            if names in "shrinking" and round_ == 0:  # a point takes more than a second
                self.shrink(stride)


def main() -> None:
    options = json.loads(sys.argv[3])
    torch.set_num_threads(1)
    rank = Rank(int(sys.argv[1]), int(sys.argv[2]), options["later"])
    rank.run(options["rounds"], options["counts"], options["names"], options["stride"])
    if rank.rank == 0:
        print(json.dumps({"counted": rank.counted, "faults": rank.faults}), flush=True)
        rank.store.get("done")  # the store lives here
    else:
        rank.store.set("done", "")
    os._exit(0)


if __name__ == "__main__":
    main()
