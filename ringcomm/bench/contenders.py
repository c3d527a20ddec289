"""The libraries that are compared, each as a function that makes a call of a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

import ringcomm
from ringcomm.bench.cases import Case
from ringcomm.bench.options import SHARED
from ringcomm.plan.algorithms import RanksPerHost

Call = Callable[[], object]


class NotOfferedError(Exception):
    """The library has no such collective for this dtype or op."""


class Contender(Protocol):
    """One of the things that are compared."""

    @property
    def name(self) -> str: ...

    @property
    def in_shared_memory(self) -> bool:
        """Whether its tensors are to be where its peers reach them."""
        ...

    def prepare(self, case: Case, input: torch.Tensor, output: torch.Tensor) -> Call:
        """A function of no arguments that carries the case out once and waits for it.

        Raises:
            NotOfferedError: the library cannot.
        """
        ...


_TORCH_OPS = {"prod": "PRODUCT"}
_FUNCTIONS = {"ring": dist, "ringcomm": ringcomm}
_MPI_OPS = {"none": "SUM"}  # where nothing is reduced, no op is used


def newest(functions: ModuleType, new: str, old: str) -> Callable[..., object]:
    """The function by its new name, which torch has from 2.14 on; the old one then warns."""
    function: Callable[..., object] = getattr(functions, new, None) or getattr(functions, old)
    return function


@dataclass(frozen=True)
class TorchContender:
    """Functions with torch.distributed's names, of torch.distributed or of ringcomm."""

    name: str
    functions: ModuleType
    group: dist.ProcessGroup = field(repr=False)
    in_shared_memory: bool = False

    def prepare(self, case: Case, input: torch.Tensor, output: torch.Tensor) -> Call:
        f, group, root, n = self.functions, self.group, case.root, case.world_size
        name = case.collective.name
        is_root = case.rank == root
        if case.collective.reduces:
            op = getattr(dist.ReduceOp, _TORCH_OPS.get(case.op, case.op.upper()))
        if name == "barrier":
            return lambda: f.barrier(group=group)
        if name == "all_reduce":
            return _copied_first(input, output, lambda: f.all_reduce(output, op, group=group))
        if name == "reduce":
            return _copied_first(
                input, output, lambda: f.reduce(output, dst=root, op=op, group=group)
            )
        if name == "broadcast":
            call = lambda: f.broadcast(output, src=root, group=group)  # noqa: E731
            return _copied_first(input, output, call) if is_root else call
        if name == "reduce_scatter":
            reduce_scatter = newest(f, "reduce_scatter_single", "reduce_scatter_tensor")
            return lambda: reduce_scatter(output, input, op, group=group)
        if name == "all_gather":
            all_gather = newest(f, "all_gather_single", "all_gather_into_tensor")
            return lambda: all_gather(output, input, group=group)
        if name == "gather":
            outputs = list(output.chunk(n)) if is_root else None
            return lambda: f.gather(input, outputs, dst=root, group=group)
        if name == "scatter":
            inputs = list(input.chunk(n)) if is_root else None
            return lambda: f.scatter(output, inputs, src=root, group=group)
        if name == "all_to_all":
            return lambda: f.all_to_all_single(output, input, group=group)
        if name == "pingpong":
            return _there_and_back(
                case,
                lambda tensor, peer: f.send(tensor, peer, group),
                lambda tensor, peer: f.recv(tensor, peer, group),
                input,
                output,
            )
        if n == 1:
            raise NotOfferedError("torch.distributed has no messages to oneself")
        return lambda: self._send_and_receive(case, input, output)

    def _send_and_receive(self, case: Case, input: torch.Tensor, output: torch.Tensor) -> None:
        f, n, rank = self.functions, case.world_size, case.rank
        following, previous = (rank + 1) % n, (rank - 1) % n
        if case.device.type == "cpu":
            sending = f.isend(input, following, self.group)
            f.recv(output, previous, self.group)
            sending.wait()
            return
        operations = [  # which on a device have to begin together
            f.P2POp(f.isend, input, following, self.group),
            f.P2POp(f.irecv, output, previous, self.group),
        ]
        for work in f.batch_isend_irecv(operations):
            work.wait()


def _there_and_back(
    case: Case,
    send: Callable[[Any, int], object],
    recv: Callable[[Any, int], object],
    input: object,
    output: object,
) -> Call:
    """What this rank does of a pingpong, in which the lower of two ranks serves.

    Raises:
        NotOfferedError: it is alone.
    """
    if case.world_size == 1:
        raise NotOfferedError("one rank alone plays no pingpong")
    partner = case.partner
    if partner is None:
        return lambda: None
    if case.rank < partner:
        return lambda: (send(input, partner), recv(output, partner))
    return lambda: (recv(output, partner), send(output, partner))


def _copied_first(input: torch.Tensor, output: torch.Tensor, call: Call) -> Call:
    """`call`, which works in place; if the case does not, after copying the input."""
    if input.data_ptr() == output.data_ptr():
        return call

    def copy_and_call() -> None:
        output.copy_(input)
        call()

    return copy_and_call


class MpiContender:
    """The MPI that mpi4py finds."""

    name = "mpi"
    in_shared_memory = False

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        if self._comm.Get_size() != dist.get_world_size():
            raise RuntimeError(
                f"MPI has {self._comm.Get_size()} ranks and torch.distributed "
                f"{dist.get_world_size()}: mpirun must start the ranks, and it must be the one of "
                f"the MPI that mpi4py loads ({MPI.Get_library_version().splitlines()[0]})"
            )

    def prepare(self, case: Case, input: torch.Tensor, output: torch.Tensor) -> Call:
        comm, root, n = self._comm, case.root, case.world_size
        name = case.collective.name
        if case.device.type != "cpu":
            raise NotOfferedError("only CPU tensors are measured with MPI")
        if case.dtype.is_floating_point and case.dtype.itemsize < 4:
            raise NotOfferedError(f"MPI has no type for {case.dtype}")
        op = getattr(self._mpi, _MPI_OPS.get(case.op, case.op.upper()), None)
        if op is None:
            raise NotOfferedError(f"MPI has no {case.op}")
        in_place = input.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
        send = self._mpi.IN_PLACE if in_place else input.numpy()
        recv = output.numpy()
        is_root = case.rank == root
        calls: dict[str, Call] = {
            "barrier": comm.Barrier,
            "all_reduce": lambda: comm.Allreduce(send, recv, op),
            "reduce": lambda: comm.Reduce(
                send if is_root else input.numpy(), recv if is_root else None, op, root
            ),
            "broadcast": lambda: comm.Bcast(recv, root),
            "all_gather": lambda: comm.Allgather(send, recv),
            "gather": lambda: comm.Gather(
                send if is_root else input.numpy(), recv if is_root else None, root
            ),
            "scatter": lambda: comm.Scatter(
                input.numpy() if is_root else None,
                self._mpi.IN_PLACE if in_place and is_root else recv,
                root,
            ),
            "all_to_all": lambda: comm.Alltoall(send, recv),
            "sendrecv": lambda: comm.Sendrecv(
                send, (case.rank + 1) % n, recvbuf=recv, source=(case.rank - 1) % n
            ),
        }
        if name == "broadcast" and is_root:
            return _copied_first(input, output, calls[name])
        if name == "pingpong":
            return _there_and_back(case, comm.Send, comm.Recv, send, recv)
        if name == "reduce_scatter":
            if in_place:
                raise NotOfferedError("in place, MPI leaves every rank's result in the first chunk")
            return lambda: comm.Reduce_scatter_block(send, recv, op)
        return calls[name]


def make_contenders(
    backends: list[str],
    algorithms: list[str],
    timeout: timedelta,
    ranks_per_host: RanksPerHost | None = None,
) -> list[Contender]:
    """All ranks call this alike, in a default group of "ring"; makes the groups.

    Raises:
        RuntimeError: a backend cannot be had; the message says what is missing.
    """
    contenders: list[Contender] = []
    for backend in backends:
        if backend == "mpi":
            contenders.append(MpiContender())
        elif backend == "oneccl":
            from ringcomm.bench.oneccl import OneCclContender

            contenders.append(OneCclContender())
        elif (functions := _FUNCTIONS.get(backend.removesuffix(SHARED))) is not None:
            for algorithm in algorithms:
                name = backend if algorithms == ["auto"] else f"{backend}/{algorithm}"
                group = ringcomm.new_group(
                    timeout=timeout, algorithm=algorithm, ranks_per_host=ranks_per_host
                )
                contenders.append(TorchContender(name, functions, group, backend.endswith(SHARED)))
        else:
            group = cast(dist.ProcessGroup, dist.new_group(backend=backend, timeout=timeout))
            contenders.append(TorchContender(backend, dist, group))
    return contenders
