"""oneCCL's library, as pip installs it, by its C interface (oneapi/ccl.h)."""

from __future__ import annotations

import atexit
import ctypes
import os

import torch
import torch.distributed as dist

from ringcomm.bench.cases import Case
from ringcomm.bench.contenders import Call, NotOfferedError

_LIBRARY = "libccl.so.2"
_DTYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
_OPS = {"sum": 0, "none": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
# The library's plugin for tensors on CPUs.
_PLUGIN = {"CCL_PLUGIN": "ONECCL_LEGACY_CPU", "CCL_ATL_TRANSPORT": "mpi"}
# Its threads would take the cores from the ranks, which have to wait for it anyway.
_NO_THREADS = {"CCL_WORKER_OFFLOAD": "0"}


class _UniqueId(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char * 4096)]


class OneCclContender:
    """oneCCL among the ranks that its mpirun has started, on CPU tensors."""

    name = "oneccl"
    in_shared_memory = False

    def __init__(self) -> None:
        for name, value in (_PLUGIN | _NO_THREADS).items():
            os.environ.setdefault(name, value)
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise RuntimeError(f"oneCCL cannot be loaded: {error}") from None
        self._library.onecclGetErrorString.restype = ctypes.c_char_p
        self._library.onecclCommInitRank.argtypes = [
            *(ctypes.c_void_p, ctypes.c_size_t, _UniqueId, ctypes.c_int)
        ]
        unique_id = _UniqueId()
        if dist.get_rank() == 0:
            self._call("GetUniqueId", ctypes.byref(unique_id))
        shared = [bytes(unique_id)]
        dist.broadcast_object_list(shared)
        unique_id = _UniqueId.from_buffer_copy(shared[0])
        self._comm = ctypes.c_void_p()
        comm = ctypes.byref(self._comm)
        self._call("CommInitRank", comm, dist.get_world_size(), unique_id, dist.get_rank())
        # Its MPI takes a rank that ends without for one that has failed.
        atexit.register(self._call, "CommDestroy", self._comm)

    def prepare(self, case: Case, input: torch.Tensor, output: torch.Tensor) -> Call:
        if case.device.type != "cpu":
            raise NotOfferedError("only CPU tensors are measured with oneCCL")
        if (dtype := _DTYPES.get(case.dtype)) is None:
            raise NotOfferedError(f"oneCCL has no type for {case.dtype}")
        if (op := _OPS.get(case.op)) is None:
            raise NotOfferedError(f"oneCCL has no {case.op}")
        count = min(input.numel(), output.numel())
        function, *rest = {
            "all_reduce": ("AllReduce", count, dtype, op),
            "reduce": ("Reduce", count, dtype, op, case.root),
            "broadcast": ("Broadcast", count, dtype, case.root),
            "reduce_scatter": ("ReduceScatter", count, dtype, op),
            "all_gather": ("AllGather", count, dtype),
            "all_to_all": ("AllToAll", count // case.world_size, dtype),
        }.get(case.collective.name, ("",))
        if not function:
            raise NotOfferedError(f"oneCCL has no {case.collective.name}")
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (input, output)]
        arguments = [*pointers, ctypes.c_size_t(int(rest[0])), *rest[1:], self._comm, None]
        return lambda: self._call(str(function), *arguments)

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, f"oneccl{function}")(*arguments)
        if code != 0:
            text = self._library.onecclGetErrorString(code).decode(errors="replace")
            raise RuntimeError(f"oneccl{function} failed with {code}: {text}")


def version() -> str:
    """Such as 2022.2.0.

    Raises:
        OSError: the library cannot be loaded.
    """
    library = ctypes.CDLL(_LIBRARY)
    encoded, *parts = (ctypes.c_int() for _ in range(4))
    library.onecclGetVersion(ctypes.byref(encoded))
    library.onecclExtractVersionComponents(encoded, *map(ctypes.byref, parts))
    return ".".join(str(part.value) for part in parts)
