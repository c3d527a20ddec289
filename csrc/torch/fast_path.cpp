// What costs a small call most is not the call: an argument that pybind11 converts, an attribute of
// torch.distributed's that is a Python function. So the functions here are Python's own (METH_
// FASTCALL), and look at torch.distributed's state where it keeps it.
//
// They return False, or None in place of a Work, with nothing done, wherever torch.distributed has
// to carry out the call: it is to be recorded (a profiler, a dispatch mode, coalescing), a tensor
// is of a subclass, not on the CPU, not contiguous or not plain memory (sparse, quantized, wrapped
// by functorch), the op carries a factor, operations are under way, or the group is not known here.
#include <Python.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/profiler/api.h>

#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "plan/plan.h"
#include "torch/backend.h"
#include "torch/bindings.h"
#include "torch/tensors.h"
#include "torch/world.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

class FastPath {
 public:
  FastPath(const py::dict& names, const py::object& ops) : world_(names) {
    const py::dict members = ops.attr("__members__");
    for (const auto& [name, member] : members) {
      const auto op = member.cast<c10d::ReduceOp::RedOpType>();
      if (op != c10d::ReduceOp::PREMUL_SUM) {
        ops_.at(static_cast<std::size_t>(op)) = py::reinterpret_borrow<py::object>(member);
      }
    }
  }

  // By a weak reference to the group, `forget` is called before its number belongs to another.
  void remember(PyObject* group, const c10::intrusive_ptr<c10d::Backend>& backend) {
    if (dynamic_cast<RingBackend*>(backend.get()) != nullptr) backends_[group] = backend;
  }
  void forget(PyObject* group) { backends_.erase(group); }
  std::size_t num_groups() const { return backends_.size(); }

  std::optional<c10d::ReduceOp::RedOpType> find_op(PyObject* op) const {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].ptr() == op) return static_cast<c10d::ReduceOp::RedOpType>(i);
    }
    return std::nullopt;
  }

  // carry_out(ring), without the GIL, where the group's ring can be called now.
  template <typename CarryOut>
  auto call(PyObject* group,
            CarryOut&& carry_out) const -> decltype(carry_out(std::declval<RingBackend&>())) {
    if (torch::profiler::impl::profilerEnabled()) return {};
    if (c10::impl::TorchDispatchModeTLS::stack_len() > 0) return {};
    const py::object container = world_.container();
    const py::object called = world_.group_to_call(container, group);
    const auto known = backends_.find(called.ptr());
    if (known == backends_.end() || !world_.knows(container, called)) return {};
    // While Python goes on elsewhere, the group may end.
    const c10::intrusive_ptr<c10d::Backend> ring = known->second;
    const py::gil_scoped_release release;
    return carry_out(static_cast<RingBackend&>(*ring));
  }

 private:
  const World world_;
  std::array<py::object, 16> ops_;
  std::unordered_map<PyObject*, c10::intrusive_ptr<c10d::Backend>> backends_;
};

// Never destroyed, as threads may call until the process ends. Guarded by the GIL.
FastPath* fast_path = nullptr;

// What a Python argument is to the backend. `find` and `in` give null or none where
// torch.distributed has to look at it: `find` at once, `in` once the group's ring is known.
struct TensorArgument {
  static const at::Tensor* find(const FastPath&, PyObject* tensor) {
    if (Py_TYPE(tensor) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) return nullptr;
    const at::Tensor& unpacked = THPVariable_Unpack(tensor);
    // Pairs are made of complex numbers first, which is another dtype to the peers.
    return is_plain(unpacked) && !unpacked.is_complex() ? &unpacked : nullptr;
  }
  static const at::Tensor* in(const RingBackend&, const at::Tensor& tensor) { return &tensor; }
};

struct OpArgument {
  using Op = c10d::ReduceOp::RedOpType;
  static std::optional<Op> find(const FastPath& path, PyObject* op) { return path.find_op(op); }
  static std::optional<Op> in(const RingBackend&, Op op) { return op; }
};

// A root or a peer, given as a rank of the default group.
struct RankArgument {
  static std::optional<std::uint64_t> find(const FastPath&, PyObject* rank) {
    if (!PyLong_CheckExact(rank)) return std::nullopt;
    const long number = PyLong_AsLong(rank);
    if (number >= 0) return static_cast<std::uint64_t>(number);
    PyErr_Clear();  // of a number that is no long
    return std::nullopt;
  }
  static std::optional<int> in(const RingBackend& ring, std::uint64_t rank) {
    return ring.find(rank);
  }
};

struct TagArgument {
  static std::optional<int> find(const FastPath& path, PyObject* tag) {
    const std::optional<std::uint64_t> number = RankArgument::find(path, tag);
    if (!number || *number > std::numeric_limits<int>::max()) return std::nullopt;
    return static_cast<int>(*number);
  }
  static std::optional<int> in(const RingBackend&, int tag) { return tag; }
};

using Args = PyObject* const*;

// function(ring, the arguments...) of the ring of the group, which is the last argument.
template <auto function, typename... Arguments, std::size_t... i>
auto call_ring(const FastPath& path, Args args, std::index_sequence<i...>) {
  const std::tuple found{Arguments::find(path, args[i])...};
  const auto carry_out = [&](RingBackend& ring) {
    const std::tuple known{Arguments::in(ring, *std::get<i>(found))...};
    using Result = decltype(std::invoke(function, ring, *std::get<i>(known)...));
    if (!(... && std::get<i>(known))) return Result();
    return std::invoke(function, ring, *std::get<i>(known)...);
  };
  using Result = decltype(path.call(nullptr, carry_out));
  return (... && std::get<i>(found)) ? path.call(args[sizeof...(i)], carry_out) : Result();
}

PyObject* to_python(bool is_done) { return PyBool_FromLong(is_done); }
PyObject* to_python(const RingBackend::WorkPtr& work) { return py::cast(work).release().ptr(); }

// A function of Python's own: its arguments and the group, all by position.
template <auto function, typename... Arguments>
PyObject* fast_function(PyObject*, Args args, Py_ssize_t num_args) {
  constexpr int n = sizeof...(Arguments) + 1;
  if (num_args != n) {
    return PyErr_Format(PyExc_TypeError, "takes %d arguments, got %zd", n, num_args);
  }
  try {
    static constexpr auto indices = std::make_index_sequence<sizeof...(Arguments)>();
    const auto call = [](const FastPath& path, Args a) {
      return call_ring<function, Arguments...>(path, a, indices);
    };
    using Result = decltype(call(*fast_path, args));
    return to_python(fast_path != nullptr ? call(*fast_path, args) : Result());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const PlanError& error) {  // which torch would take for a RuntimeError
    PyErr_SetString(plan_error_type(), error.what());
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
  return nullptr;
}

using Kind = shm::Message::Kind;
template <Kind kind>
bool try_message(RingBackend& ring, const at::Tensor& tensor, int peer, int tag) {
  return ring.try_message_sync(kind, tensor, peer, tag);
}
template <Kind kind>
RingBackend::WorkPtr begin_message(RingBackend& ring, const at::Tensor& tensor, int peer, int tag) {
  return ring.begin_message(kind, tensor, peer, tag);
}

template <auto function, typename... Arguments>
PyMethodDef method(const char* name, const char* doc) {
  return {name,
          reinterpret_cast<PyCFunction>(
              reinterpret_cast<void (*)()>(fast_function<function, Arguments...>)),
          METH_FASTCALL, doc};
}

PyMethodDef methods[] = {
    method<&RingBackend::try_all_reduce_sync, TensorArgument, OpArgument>(
        "try_all_reduce_sync", "try_all_reduce_sync(tensor, op, group) -> bool"),
    method<&RingBackend::try_reduce_scatter_sync, TensorArgument, TensorArgument, OpArgument>(
        "try_reduce_scatter_sync", "try_reduce_scatter_sync(output, input, op, group) -> bool"),
    method<&RingBackend::try_all_gather_sync, TensorArgument, TensorArgument>(
        "try_all_gather_sync", "try_all_gather_sync(output, input, group) -> bool"),
    method<&RingBackend::try_broadcast_sync, TensorArgument, RankArgument>(
        "try_broadcast_sync", "try_broadcast_sync(tensor, src, group) -> bool"),
    method<&RingBackend::try_reduce_sync, TensorArgument, RankArgument, OpArgument>(
        "try_reduce_sync", "try_reduce_sync(tensor, dst, op, group) -> bool"),
    method<&RingBackend::try_all_to_all_sync, TensorArgument, TensorArgument>(
        "try_all_to_all_sync", "try_all_to_all_sync(output, input, group) -> bool"),
    method<try_message<Kind::kSend>, TensorArgument, RankArgument, TagArgument>(
        "try_send_sync", "try_send_sync(tensor, dst, tag, group) -> bool"),
    method<try_message<Kind::kRecv>, TensorArgument, RankArgument, TagArgument>(
        "try_recv_sync", "try_recv_sync(tensor, src, tag, group) -> bool"),
    method<begin_message<Kind::kSend>, TensorArgument, RankArgument, TagArgument>(
        "try_isend_sync", "try_isend_sync(tensor, dst, tag, group) -> Work | None"),
    method<begin_message<Kind::kRecv>, TensorArgument, RankArgument, TagArgument>(
        "try_irecv_sync", "try_irecv_sync(tensor, src, tag, group) -> Work | None"),
    method<&RingBackend::try_barrier_sync>("try_barrier_sync", "try_barrier_sync(group) -> bool"),
};

}  // namespace

void bind_fast_path(py::module_& m) {
  for (PyMethodDef& method : methods) {
    m.attr(method.ml_name) = py::reinterpret_steal<py::object>(
        PyCFunction_NewEx(&method, nullptr, m.attr("__name__").ptr()));
  }
  m.def(
      "watch_groups",
      [](const py::dict& names, const py::object& ops) {
        if (fast_path == nullptr) fast_path = new FastPath(names, ops);
      },
      py::arg("names"), py::arg("ops"),
      "With the namespace of torch.distributed.distributed_c10d and the type of ops.");
  m.def(
      "remember_group",
      [](const py::object& group, const c10::intrusive_ptr<c10d::Backend>& backend) {
        fast_path->remember(group.ptr(), backend);
      },
      py::arg("group"), py::arg("backend"), "From now on, fast calls find the group's backend.");
  m.def(
      "forget_group",
      [](std::uintptr_t group) { fast_path->forget(reinterpret_cast<PyObject*>(group)); },
      py::arg("id"), "By id(group), when the group ends.");
  m.def("num_remembered_groups", [] { return fast_path->num_groups(); }, "That fast calls find.");
}

}  // namespace ringcomm
