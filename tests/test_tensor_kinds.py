"""Every kind of tensor and every mode that torch has, by the direct calls and by torch.distributed.

Both give the same bits, and the right ones, or the same kind of error; no rank crashes or waits in
vain, and the group works afterwards. The kinds are found by torch's dispatch keys: a key that no
kind covers, and of which no sentence says why, fails the test. A kind that says that it covers a
key is believed only if the key was there when a collective was called.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on_processes
from torch import nn

import ringcomm

WORLD_SIZE = 2
TIMEOUT = timedelta(seconds=20)
COUNTS = [8, 100_000]  # beside the announcement, and in slots

Use = Callable[[torch.Tensor], None]  # a collective, of a tensor of the kind
Body = Callable[[Use, torch.Tensor], torch.Tensor | None]


@dataclass
class Kind:
    """How a tensor of a kind, with given values, is used in a collective.

    `body` returns the values that it has then, as an ordinary tensor; None where none can be read.
    """

    body: Body
    keys: list[str]  # dispatch keys that it covers
    dtype: torch.dtype = torch.float32
    counts: list[int] = field(default_factory=lambda: COUNTS)
    is_zero: bool = False  # its values can only be zeros
    is_read_only: bool = False  # a write to it is a SIGSEGV, as with any other function of torch's
    is_refused: bool = False  # whatever the role
    is_passed_over: bool = False  # torch carries out nothing, without an error
    is_elsewhere: bool = False  # on a device; a refusal there does not reach the others
    differs: str = ""  # why the direct calls do not what torch.distributed's do


KINDS: dict[str, Kind] = {}


def kind(*keys: str, **kwargs: Any) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        KINDS[body.__name__] = Kind(body, list(keys), **kwargs)
        return body

    return register


def within(name: str, mode: Callable[[], Any], *keys: str, **kwargs: Any) -> None:
    """A kind that is an ordinary tensor within a mode."""

    def body(use: Use, values: torch.Tensor) -> torch.Tensor:
        with mode():
            use(values)
        return values

    KINDS[name] = Kind(body, list(keys), **kwargs)


def made(
    name: str,
    make: Callable[[torch.Tensor], torch.Tensor],
    *keys: str,
    read: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach,
    **kwargs: Any,
) -> None:
    """A kind that is made of an ordinary tensor, and read as one."""

    def body(use: Use, values: torch.Tensor) -> torch.Tensor:
        tensor = make(values)
        use(tensor)
        return read(tensor)

    KINDS[name] = Kind(body, list(keys), **kwargs)


# ---- Memory


made(
    "ordinary", lambda v: v, "CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU", "BackendSelect"
)
made("empty", lambda v: v, counts=[0])
made("complex_numbers", lambda v: v, dtype=torch.complex64)
made("of_another_storage", lambda v: torch.empty(0).set_(v.untyped_storage(), 0, v.size()))
made("shared_by_torch", torch.Tensor.share_memory_)
made("shared_by_ringcomm", lambda v: ringcomm.empty(v.numel()).copy_(v))
made("quantized", lambda v: torch.quantize_per_tensor(v, 1.0, 0, torch.qint8), "QuantizedCPU")
made(
    "quantized_by_channels",
    lambda v: torch.quantize_per_channel(
        v.view(2, -1), torch.ones(2), torch.zeros(2), 0, torch.quint8
    ),
)
made(
    "zeros_without_memory",
    lambda v: torch._efficientzerotensor(v.shape),
    "ZeroTensor",
    read=lambda t: t + torch.zeros(t.shape),
    is_zero=True,
)
made("sparse_coo", torch.Tensor.to_sparse, "SparseCPU", read=torch.Tensor.to_dense)
made(
    "sparse_csr",
    lambda v: v.view(2, -1).to_sparse_csr(),
    "SparseCsrCPU",
    read=lambda t: t.to_dense().view(-1),
)
made(
    "sparse_csc",
    lambda v: v.view(2, -1).to_sparse_csc(),
    read=lambda t: t.to_dense().view(-1),
)
made(
    "sparse_bsr",
    lambda v: v.view(2, -1).to_sparse_bsr((1, 1)),
    read=lambda t: t.to_dense().view(-1),
)
made("in_the_layout_of_mkldnn", torch.Tensor.to_mkldnn, "MkldnnCPU", read=torch.Tensor.to_dense)
made(
    "mkldnn_with_grad",
    lambda v: v.to_mkldnn().requires_grad_(),
    "AutogradOther",
    read=lambda t: t.detach().to_dense(),
)
made(
    "nested",
    lambda v: torch.nested.nested_tensor(list(v.view(2, -1))),
    "NestedTensorCPU",
    "AutogradNestedTensor",
    read=lambda t: torch.cat(t.unbind()),
)
made(
    "nested_jagged",
    lambda v: torch.nested.nested_tensor(list(v.view(2, -1)), layout=torch.jagged),
    read=lambda t: t.values(),
)
made("on_meta", lambda v: v.to("meta"), "Meta", "AutogradMeta", is_passed_over=True)
KINDS["on_meta"].body = lambda use, v: use(v.to("meta"))
LOST = "torch.distributed loses what it writes to such a tensor, the direct calls refuse it"
made("still_to_be_negated", lambda v: torch._neg_view(-v), "Negative", differs=LOST)
KINDS["still_to_be_negated"].body = lambda use, v: _read(use, torch._neg_view(-v))
made(
    "still_to_be_conjugated",
    lambda v: v.conj().clone().conj(),
    "Conjugate",
    dtype=torch.complex64,
    differs=LOST,
)
KINDS["still_to_be_conjugated"].body = lambda use, v: _read(use, v.conj_physical().conj())
made(
    "sparse_complex",
    torch.Tensor.to_sparse,
    read=torch.Tensor.to_dense,
    dtype=torch.complex64,
    differs=LOST,
)


def _read(use: Use, tensor: torch.Tensor) -> torch.Tensor:
    use(tensor)
    return tensor.resolve_conj().resolve_neg()


@kind()
def lazily_cloned(use: Use, values: torch.Tensor) -> torch.Tensor:
    original = values.clone()
    clone = original._lazy_clone()
    use(clone)
    assert torch.equal(original, values), "the tensor of which it is a lazy clone was written to"
    return clone


@kind()
def with_a_lazy_clone(use: Use, values: torch.Tensor) -> torch.Tensor:
    original = values.clone()
    clone = original._lazy_clone()
    use(original)
    assert torch.equal(clone, values), "its lazy clone was written to"
    return original


@kind(is_refused=True)
def freed(use: Use, values: torch.Tensor) -> None:
    values.untyped_storage().resize_(0)
    use(values)


@kind(is_refused=True)
def too_short(use: Use, values: torch.Tensor) -> None:
    values.untyped_storage().resize_(4 * values.numel() - 4)
    use(values)


@kind(is_refused=True)
def a_view_beyond_the_storage(use: Use, values: torch.Tensor) -> None:
    view = values[values.numel() // 2 :]
    values.untyped_storage().resize_(2 * values.numel())
    use(view.as_strided((values.numel(),), (1,), values.numel() // 2))


@kind()
def of_numpy(use: Use, values: torch.Tensor) -> torch.Tensor:
    array = values.numpy().copy()
    use(torch.from_numpy(array))
    return torch.from_numpy(array)


@kind()
def of_a_read_only_array(use: Use, values: torch.Tensor) -> torch.Tensor:
    """Torch writes to such arrays, too."""
    array = values.numpy().copy()
    array.flags.writeable = False
    tensor = torch.from_numpy(array)
    use(tensor)
    return tensor


@kind()
def of_a_file(use: Use, values: torch.Tensor) -> torch.Tensor:
    with tempfile.NamedTemporaryFile() as file:
        tensor = torch.from_file(file.name, shared=True, size=values.numel()).copy_(values)
        use(tensor)
        return torch.from_numpy(np.fromfile(file.name, dtype=np.float32))


@kind()
def of_a_private_mapping(use: Use, values: torch.Tensor) -> torch.Tensor:
    with tempfile.TemporaryFile() as file:
        file.write(values.numpy().tobytes())
        file.flush()
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        tensor = torch.frombuffer(memory, dtype=torch.float32)
        use(tensor)
        return tensor.clone()


@kind(is_read_only=True)
def of_a_read_only_mapping(use: Use, values: torch.Tensor) -> torch.Tensor:
    with tempfile.TemporaryFile() as file:
        file.write(values.numpy().tobytes())
        file.flush()
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tensor = torch.frombuffer(memory, dtype=torch.float32)
        use(tensor)
        return tensor.clone()


# ---- Autograd


made("a_leaf", lambda v: v.requires_grad_())
made("not_a_leaf", lambda v: v.requires_grad_() * 1)
made("a_parameter", nn.Parameter)
made("a_parameter_without_grad", lambda v: nn.Parameter(v, requires_grad=False))
made("a_buffer", nn.Buffer)
made(
    "an_uninitialized_parameter",
    lambda v: nn.UninitializedParameter(),
    differs="torch.distributed takes it for an empty tensor, the direct calls refuse it",
)
if hasattr(torch.Tensor, "rename"):  # not from torch 2.14 on
    made("named", lambda v: v.rename("N"), read=lambda t: t.rename(None))
within("without_grad", torch.no_grad)
within("inference_mode", torch.inference_mode)
within("autocast", lambda: torch.autocast("cpu", torch.bfloat16))
within(
    "saved_tensor_hooks",
    lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
)
within("anomalies", torch.autograd.detect_anomaly)
within("profiler", torch.profiler.profile)
within("on_the_cpu", lambda: torch.device("cpu"))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


within("deterministic_mode", deterministic)


@kind()
def an_inference_tensor(use: Use, values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        tensor = values.clone()
    use(tensor)
    return tensor.clone()


@kind()
def a_dual(use: Use, values: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        tensor = torch.autograd.forward_ad.make_dual(values, torch.ones_like(values))
        use(tensor)
        return torch.autograd.forward_ad.unpack_dual(tensor).primal.clone()


@kind()
def a_custom_function(use: Use, values: torch.Tensor) -> torch.Tensor:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            use(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    return Function.apply(values).detach()


@kind()
def within_backward(use: Use, values: torch.Tensor) -> torch.Tensor:
    leaf = torch.zeros_like(values, requires_grad=True)
    leaf.register_hook(use)
    kept: list[torch.Tensor] = []
    leaf.register_hook(lambda grad: kept.append(grad.clone()))
    leaf.backward(values.clone())
    return kept[0]


# ---- Functions of functions


def _then_read(use: Use) -> Callable[[torch.Tensor], torch.Tensor]:
    def then_read(x: torch.Tensor) -> torch.Tensor:
        use(x)
        return x.clone()

    return then_read


def _scalar(use: Use) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    def scalar(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        use(x)
        return x.sum(), x.clone()

    return scalar


@kind("FuncTorchBatched")
def vmap(use: Use, values: torch.Tensor) -> torch.Tensor:
    return torch.vmap(_then_read(use))(values[None])[0]


@kind("FuncTorchBatched")
def vmap_of_vmap(use: Use, values: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.vmap(_then_read(use)))(values[None, None])[0, 0]


@kind()
def vmap_over_what_it_closes_over(use: Use, values: torch.Tensor) -> torch.Tensor:
    torch.vmap(lambda x: (use(values), x)[1])(torch.ones(1))
    return values


@kind("FuncTorchGradWrapper", "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode")
def grad(use: Use, values: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(_scalar(use), has_aux=True)(values)[1]


@kind()
def grad_over_what_it_closes_over(use: Use, values: torch.Tensor) -> torch.Tensor:
    torch.func.grad(lambda x: (use(values), x.sum())[1])(torch.ones(1))
    return values


@kind()
def grad_of_grad(use: Use, values: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, aux = torch.func.grad(_scalar(use), has_aux=True)(x)
        return gradient.sum(), aux

    return torch.func.grad(inner, has_aux=True)(values)[1]


@kind()
def vmap_of_grad(use: Use, values: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.func.grad(_scalar(use), has_aux=True))(values[None])[1][0]


@kind()
def jvp(use: Use, values: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(_then_read(use), (values,), (torch.ones_like(values),))[0]


@kind()
def vjp(use: Use, values: torch.Tensor) -> torch.Tensor:
    return torch.func.vjp(_then_read(use), values)[0]


@kind(counts=[8])
def jacrev(use: Use, values: torch.Tensor) -> torch.Tensor:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (_then_read(use)(x),) * 2

    return torch.func.jacrev(twice, has_aux=True)(values)[1]


@kind(counts=[8])
def jacfwd(use: Use, values: torch.Tensor) -> torch.Tensor:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (_then_read(use)(x),) * 2

    return torch.func.jacfwd(twice, has_aux=True)(values)[1]


@kind("Functionalize")
def functionalize(use: Use, values: torch.Tensor) -> torch.Tensor:
    return torch.func.functionalize(_then_read(use))(values)


@kind("Batched", "VmapMode")
def vmap_as_it_was(use: Use, values: torch.Tensor) -> torch.Tensor:
    from torch._vmap_internals import _vmap

    return _vmap(_then_read(use))(values[None])[0]


@kind("BatchedNestedTensor")
def vmap_of_nested(use: Use, values: torch.Tensor) -> torch.Tensor:
    nested = torch.nested.nested_tensor(list(values.view(2, -1)))
    return torch.cat(torch.vmap(_then_read(use))(nested).unbind())


# ---- Tracing


@kind("Tracer")
def jit_trace(use: Use, values: torch.Tensor) -> torch.Tensor:
    kept: list[torch.Tensor] = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        use(x)
        kept.append(x)
        return x.clone()

    torch.jit.trace(traced, values, check_trace=False)
    return kept[0].detach().clone()


def _make_fx(name: str, *keys: str, **options: Any) -> None:
    def body(use: Use, values: torch.Tensor) -> torch.Tensor | None:
        from torch.fx.experimental.proxy_tensor import make_fx

        make_fx(_then_read(use), **options)(values)
        return values

    is_fake = options.get("tracing_mode", "real") != "real"
    counts = [8] if is_fake else COUNTS  # torch shows the whole tensor in its error
    KINDS[name] = Kind(body, list(keys), counts=counts, is_passed_over=is_fake)


_make_fx("make_fx")
_make_fx("make_fx_before_dispatch", "PreDispatch", pre_dispatch=True)
_make_fx("make_fx_of_fakes", tracing_mode="fake")
_make_fx("make_fx_of_symbols", "PythonDispatcher", tracing_mode="symbolic")


def _compiled(name: str, backend: str) -> None:
    def body(use: Use, values: torch.Tensor) -> torch.Tensor:
        torch._dynamo.reset()
        try:
            torch.compile(_then_read(use), backend=backend)(values)
        finally:
            torch._dynamo.reset()
        return values

    KINDS[name] = Kind(body, [], counts=[8])


_compiled("compiled", "eager")
_compiled("compiled_with_aot", "aot_eager")


# ---- Subclasses and modes


@kind(is_passed_over=True)
def fake(use: Use, values: torch.Tensor) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        use(mode.from_tensor(values))


@kind(is_passed_over=True)
def fake_outside_of_its_mode(use: Use, values: torch.Tensor) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    use(FakeTensorMode().from_tensor(values))


@kind(counts=[8])  # torch shows the whole tensor in its error
def real_in_the_mode_of_fakes(use: Use, values: torch.Tensor) -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        use(values)
    return values


@kind("Functionalize")
def functional(use: Use, values: torch.Tensor) -> torch.Tensor:
    tensor = torch._to_functional_tensor(values)
    use(tensor)
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


@kind()
def functional_in_its_mode(use: Use, values: torch.Tensor) -> torch.Tensor:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        tensor = FunctionalTensor.to_functional(values)
        use(tensor)
        torch._sync(tensor)
        return torch._from_functional_tensor(tensor.elem)


class Wraps(torch.Tensor):
    """Has no memory of its own, and unwraps all arguments."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wraps:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(x: Any) -> Any:
            return x.inner if isinstance(x, Wraps) else x

        def wrap(x: Any) -> Any:
            return Wraps(x) if isinstance(x, torch.Tensor) else x

        mapped = torch.utils._pytree.tree_map
        return mapped(wrap, func(*mapped(unwrap, args), **mapped(unwrap, kwargs or {})))


class Dispatches(torch.Tensor):
    """Has memory, and a __torch_dispatch__."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


class Functions(torch.Tensor):
    """Has a __torch_function__."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs)


class Forbids(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"{func} is forbidden")


made("wrapped", Wraps, "Python", "PythonTLSSnapshot", read=lambda t: t.inner)
made(
    "that_dispatches",
    lambda v: torch.Tensor._make_subclass(Dispatches, v),
    read=lambda t: torch.Tensor._make_subclass(torch.Tensor, t),
)
made(
    "that_has_functions",
    lambda v: v.as_subclass(Functions),
    read=lambda t: t.as_subclass(torch.Tensor),
)


@kind()
def that_forbids_all(use: Use, values: torch.Tensor) -> torch.Tensor:
    use(torch.Tensor._make_subclass(Forbids, values))
    return values


@kind()
def of_dtensor(use: Use, values: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Replicate

    tensor = DTensor.from_local(values, mesh(), [Replicate()], run_check=False)
    use(tensor)
    return tensor.to_local()


@kind()
def not_yet_waited_for(use: Use, values: torch.Tensor) -> torch.Tensor:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    tensor = AsyncCollectiveTensor(values)
    use(tensor)
    return values


def mesh() -> Any:
    return _meshes[0]


_meshes: list[Any] = []


@contextlib.contextmanager
def dispatch_mode() -> Iterator[None]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    with Mode():
        yield


@contextlib.contextmanager
def function_mode() -> Iterator[None]:
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    with Mode():
        yield


@contextlib.contextmanager
def python_dispatcher() -> Iterator[None]:
    from torch._dispatch.python import enable_python_dispatcher

    with enable_python_dispatcher():
        yield


within("dispatch_mode", dispatch_mode, "Python")
within("function_mode", function_mode)
within("python_dispatcher", python_dispatcher, "PythonDispatcher")


# ---- Devices


@kind("Lazy", "AutogradLazy", differs=LOST, is_elsewhere=True)
def on_a_lazy_device(use: Use, values: torch.Tensor) -> torch.Tensor:
    import torch._lazy.ts_backend

    with contextlib.suppress(RuntimeError):  # once in a process
        torch._lazy.ts_backend.init()
    tensor = values.to("lazy")
    use(tensor)
    return tensor.to("cpu")


# ---- What of torch's keys no kind covers, and why

_NO_DEVICE = "No such device is in this build of torch; what it holds is refused by its device."
UNREACHED: dict[str, str] = {
    "UnknownUnknown": "It is the name of what is no key.",
    "FPGA": _NO_DEVICE,
    "Vulkan": _NO_DEVICE,
    "Metal": _NO_DEVICE,
    "CustomRNGKeyId": "It is the key of generators of random numbers, which no tensor has.",
    "FuncTorchVmapMode": "Functorch sets it for functions of random numbers only.",
    "DeferredInit": "Its mode comes with torchdistx, which this torch is not built for.",
    "TESTING_ONLY_GenericWrapper": "Only torch's own C++ tests make such tensors.",
    "TESTING_ONLY_GenericMode": "Only torch's own C++ tests set it.",
    "Fake": "Torch's C++ fakes have it, which Python makes through Python's fakes here.",
    **dict.fromkeys(
        ["Dense", "Quantized", "Sparse", "SparseCsr", "NestedTensor", "AutogradFunctionality"],
        "It is what the keys of its devices have in common; a tensor has those.",
    ),
    "Autograd": "It stands for the autograd keys in registrations; no tensor has it.",
    "CompositeImplicitAutograd": "Operators are registered by it; no tensor has it.",
    "FuncTorchBatchedDecomposition": "Operators are registered by it; no tensor has it.",
    "CompositeImplicitAutogradNestedTensor": "Operators are registered by it; no tensor has it.",
    "CompositeExplicitAutograd": "Operators are registered by it; no tensor has it.",
    "CompositeExplicitAutogradNonFunctional": "Operators are registered by it; no tensor has it.",
}
# Functionalities of which there is a key for each device; and devices, but for those of kinds.
FUNCTIONALITIES = ["", "Quantized", "Sparse", "SparseCsr", "NestedTensor", "Autograd", "Autocast"]
DEVICES = {
    "CUDA": "It needs a GPU: tests/test_cuda.py.",
    "PrivateUse1": "A device of this key is an extension in C++, and none is here.",
    "Meta": "Tensors without memory are refused or passed over by their device: on_meta.",
    "Lazy": "It is refused by its device: on_a_lazy_device.",
    **dict.fromkeys(["HIP", "XLA", "MPS", "IPU", "XPU", "HPU", "VE", "MTIA", "MAIA"], _NO_DEVICE),
    **dict.fromkeys(["PrivateUse2", "PrivateUse3"], _NO_DEVICE),
}


def keys_of_torch() -> list[str]:
    """Also of those that torch._C.DispatchKey has no name for in Python."""
    numbers = {int(key) for key in torch._C.DispatchKey.__members__.values()}
    named = (torch._C._dispatch_key_name(torch._C.DispatchKey(i)) for i in range(max(numbers) + 1))
    return sorted({name for name in named if not name.endswith("Undefined")})


def why_unreached(key: str) -> str | None:
    if key in UNREACHED:
        return UNREACHED[key]
    for functionality in FUNCTIONALITIES:
        if key.startswith(functionality) and key.removeprefix(functionality) in DEVICES:
            return DEVICES[key.removeprefix(functionality)]
    return None


def test_every_dispatch_key_has_a_kind_or_a_reason() -> None:
    covered = {key for kind in KINDS.values() for key in kind.keys}
    unknown = [key for key in keys_of_torch() if key not in covered and why_unreached(key) is None]
    assert not unknown, f"torch has dispatch keys that no kind of tensor here covers: {unknown}"


# ---- Roles that a tensor has in a collective


@dataclass
class Role:
    """use_of(library, rank, count, dtype) -> (use, ordinary tensors that are results, too)."""

    use_of: Callable[..., tuple[Use, list[torch.Tensor]]]
    writes: bool = True  # to the tensor
    takes: bool = True  # the tensor
    copies: bool = False  # the tensor, by functions of torch's
    sends: bool = False  # rank 0 does, and need not learn what becomes of it


ROLES: dict[str, Role] = {}


def role(**kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(use_of: Callable[..., Any]) -> Callable[..., Any]:
        ROLES[use_of.__name__] = Role(use_of, **kwargs)
        return use_of

    return register


def values_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    real = (torch.arange(count) * 7 % 11 + 10 * rank + 1).float()
    return torch.complex(real, real + 1).to(dtype) if dtype.is_complex else real.to(dtype)


@role()
def all_reduce(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    return library.all_reduce, []


@role()
def all_reduce_async(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    def use(tensor: torch.Tensor) -> None:
        work = library.all_reduce(tensor, async_op=True)
        if work is not None:
            work.wait()

    return use, []


@role()
def broadcast(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    return lambda tensor: library.broadcast(tensor, 1), []


@role()
def reduce(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    return lambda tensor: library.reduce(tensor, 0), []


@role(writes=False)
def input_of_reduce_scatter(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    out = torch.zeros(count // WORLD_SIZE, dtype=dtype)
    return lambda tensor: library.reduce_scatter_tensor(out, tensor), [out]


@role()
def output_of_reduce_scatter(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    given = values_of(me, WORLD_SIZE * count, dtype)
    return lambda tensor: library.reduce_scatter_tensor(tensor, given), []


@role(writes=False)
def input_of_all_gather(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    out = torch.zeros(WORLD_SIZE * count, dtype=dtype)
    return lambda tensor: library.all_gather_into_tensor(out, tensor), [out]


@role()
def output_of_all_gather(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    given = values_of(me, count // WORLD_SIZE, dtype)
    return lambda tensor: library.all_gather_into_tensor(tensor, given), []


@role(writes=False)
def input_of_all_to_all(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    out = torch.zeros(count, dtype=dtype)
    return lambda tensor: library.all_to_all_single(out, tensor), [out]


@role()
def output_of_all_to_all(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    given = values_of(me, count, dtype)
    return lambda tensor: library.all_to_all_single(tensor, given), []


@role(copies=True)
def both_of_all_to_all(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    def use(tensor: torch.Tensor) -> None:
        out = torch.empty_like(tensor)
        library.all_to_all_single(out, tensor)
        tensor.copy_(out)

    return use, []


@role(copies=True)
def both_of_all_gather(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    def use(tensor: torch.Tensor) -> None:
        out = tensor.new_empty(WORLD_SIZE * tensor.numel())
        library.all_gather_into_tensor(out, tensor)
        tensor.copy_(out[tensor.numel() :].view_as(tensor))

    return use, []


@role(copies=True)
def both_of_reduce_scatter(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    def use(tensor: torch.Tensor) -> None:
        given = torch.cat([tensor, tensor])
        library.reduce_scatter_tensor(tensor, given)

    return use, []


@role(sends=True)
def message(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    if me == 0:
        return lambda tensor: library.send(tensor, 1), []
    return lambda tensor: library.recv(tensor, 0), []


@role(sends=True)
def message_later(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    call, peer = (library.isend, 1) if me == 0 else (library.irecv, 0)

    def use(tensor: torch.Tensor) -> None:
        work = call(tensor, peer)
        if work is not None:
            work.wait()

    return use, []


@role(writes=False, takes=False)
def barrier(library: Any, me: int, count: int, dtype: torch.dtype) -> Any:
    return lambda tensor: library.barrier(), []


# ---- What came of it


@dataclass
class Found:
    values: tuple[bytes | None, ...] = ()
    error: str = ""  # the name of its type
    text: str = ""
    entered: bool = False  # the library was called
    is_done: bool = False  # and has returned

    def same_as(self, other: Found) -> bool:
        return self.error == other.error and self.values == other.values

    def __str__(self) -> str:
        return f"{self.error}: {self.text[:300]}" if self.error else f"values {_short(self.values)}"


def _short(values: Iterable[bytes | None]) -> str:
    return ", ".join("unreadable" if v is None else v[:32].hex() for v in values)


class Watched:
    """A library of which is seen whether it was called, and has returned."""

    def __init__(self, library: Any, found: Found) -> None:
        self._library, self._found = library, found

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._found.entered = True
            result = getattr(self._library, name)(*args, **kwargs)
            self._found.is_done = True
            return result

        return call


def keys_now(tensor: Any) -> set[str]:
    """Of the tensor and of the thread, also of those that Python has no names for."""
    thread = torch._C._dispatch_tls_local_include_set()
    texts = [repr(thread)]
    with contextlib.suppress(Exception):
        texts.append(repr(torch._C._dispatch_keys(tensor)))
    return set(re.findall(r"\w+", " ".join(texts)))


def bytes_of(tensor: torch.Tensor | None) -> bytes | None:
    if tensor is None:
        return None
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def values_for(kind: Kind, me: int, count: int) -> torch.Tensor:
    values = values_of(me, count, kind.dtype)
    return values.zero_() if kind.is_zero else values


def try_out(
    kind: Kind, role: Role, library: Any, me: int, count: int, seen: set[str] | None = None
) -> Found:
    found = Found()
    values = values_for(kind, me, count)

    try:
        use, results = role.use_of(Watched(library, found), me, count, kind.dtype)

        def watching(tensor: torch.Tensor) -> None:
            if seen is not None:
                seen.update(keys_now(tensor))
            use(tensor)

        read = kind.body(use if seen is None else watching, values)
        if role.takes:
            found.values = tuple(bytes_of(tensor) for tensor in [read, *results])
    except Exception as error:
        found.error, found.text = type(error).__name__, str(error)
    return found


TORCHS_ASSERTIONS = ("Please convert all Tensors to FakeTensors", "Could not find a token")
REFUSALS = ["TypeError", "ValueError", "NotImplementedError", "RuntimeError"]

ORDINARY = Kind(lambda use, v: (use(v), v)[1], [])


def works(rank: Rank) -> Iterator[str]:
    for library in (dist, ringcomm):
        tensor = torch.full((9,), float(rank.rank + 1))
        library.all_reduce(tensor)
        if not torch.equal(tensor, torch.full((9,), 3.0)):
            yield f"rank {rank.rank}: the group gives {tensor}"


def check_kind(rank: Rank, name: str) -> list[str]:
    """The complaints."""
    dist.init_process_group(
        "ring", store=rank.store, rank=rank.rank, world_size=rank.world_size, timeout=TIMEOUT
    )
    kind = KINDS[name]
    if name == "of_dtensor":
        from torch.distributed.device_mesh import init_device_mesh

        _meshes[:] = [init_device_mesh("cpu", (WORLD_SIZE,))]
    ringcomm.barrier()
    complaints: list[str] = []
    seen: set[str] = set()
    for role_name, role in ROLES.items():
        if (kind.is_read_only and role.writes) or (kind.is_refused and role.copies):
            continue
        for count in kind.counts:
            case = f"{name} as {role_name} of {count}"
            complaints += check_case(rank, kind, role, count, case, seen)
            complaints += (f"{case}: {complaint}" for complaint in works(rank))
    missing = set(kind.keys) - seen
    if missing:
        complaints.append(f"{name}: no tensor or thread had the keys {missing}")
    dist.destroy_process_group()
    return complaints


def check_case(
    rank: Rank, kind: Kind, role: Role, count: int, case: str, seen: set[str]
) -> Iterator[str]:
    me = rank.rank
    by = {}
    for library in (dist, ringcomm):
        print(case, library.__name__, flush=True)  # the last line is what a crash was in
        by[library] = try_out(kind, role, library, me, count, seen if kind.keys else None)
        if role.sends and me == 0 and "were refused: " in by[library].text:
            by[library] = Found((bytes_of(values_for(kind, me, count)),))
        rank.meet()
    direct, theirs = by[ringcomm], by[dist]
    is_explained = kind.differs and direct.error in ("ValueError", "NotImplementedError")
    if not role.takes and not direct.error:
        is_explained = True  # a barrier has no tensor that torch could refuse
    if not direct.same_as(theirs) and not is_explained:
        yield f"rank {me}, {case}: torch.distributed {theirs}, but the direct call {direct}"
    ordinary = Kind(ORDINARY.body, [], kind.dtype, is_zero=kind.is_zero)
    expected = try_out(ordinary, role, dist, me, count)
    for found in (direct, theirs):
        if kind.differs and found is theirs:
            continue
        if found.error and not is_refusal(found):
            yield f"rank {me}, {case}: {found}"
        if not found.error and kind.is_refused and role.takes and not (role.sends and me == 0):
            yield f"rank {me}, {case}: it was taken"
        if found.error or kind.is_passed_over:
            continue
        for read, wanted in zip(found.values, expected.values, strict=True):
            if read is not None and read != wanted:
                yield f"rank {me}, {case}: {found}, expected {expected}"
    if role.takes and not (kind.is_passed_over or kind.is_zero or kind.is_elsewhere):
        for library in (ringcomm, dist):
            yield from check_on_one_rank(rank, kind, role, count, case, library, by[library])


def is_refusal(found: Found) -> bool:
    """Of this rank's tensor; or of a peer's, where only some roles are refused, as a root's."""
    if found.error == "AssertionError":
        return found.text.startswith(TORCHS_ASSERTIONS)
    return found.error in REFUSALS or "arguments were refused: " in found.text


def check_on_one_rank(
    rank: Rank, kind: Kind, role: Role, count: int, case: str, library: Any, both: Found
) -> Iterator[str]:
    """If only rank 1 passes the kind and is refused, rank 0 raises at once."""
    me = rank.rank
    case = f"{case} {library.__name__} on rank 1 only"
    # Torch's own functions announce to no rank what they refuse.
    is_asked = both.entered and (library is ringcomm or not both.error)
    rank.store.set(f"{case}: asked {me}", str(is_asked))
    if rank.store.get(f"{case}: asked 1") == b"False":
        return
    print(case, flush=True)
    found = try_out(
        kind if me == 1 else replace(ORDINARY, dtype=kind.dtype), role, library, me, count
    )
    failed = not found.is_done or found.error == "DistBackendError"
    rank.store.set(f"{case}: {me}", found.error if failed else "")
    if me == 1:
        try:
            rank.store.wait([f"{case}: 0"], timedelta(seconds=3))
        except dist.DistStoreError:
            yield f"{case}: rank 0 did not see {found}"
            with contextlib.suppress(dist.DistBackendError):
                dist.group.WORLD.barrier().wait()  # which ends its wait
        return
    error = rank.store.get(f"{case}: 1").decode()
    # Sparse tensors, which can be reduced, disagree with others.
    text = "disagree" if error == "DistBackendError" else "refused"
    is_reported = found.error == "DistBackendError" and text in found.text
    if not (is_reported if error else not found.error) and not (role.sends and not found.error):
        yield f"{case}: there {error or 'no error'}, and on rank 0 {found}"


@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str) -> None:
    complaints = on_processes(check_kind, WORLD_SIZE, name, timeout=120)
    assert not any(complaints), "\n".join(line for of_rank in complaints for line in of_rank)
