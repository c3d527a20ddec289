// What costs a small call most is not the call: an argument that pybind11 converts, an attribute of
// torch.distributed's that is a Python function. So the functions here are Python's own (METH_
// FASTCALL), and look at torch.distributed's state where it keeps it.
//
// They return False, or None in place of a Work, with nothing done, wherever torch.distributed has
// to carry out the call: it is to be recorded (a profiler, a dispatch mode, coalescing), a tensor
// is of a subclass, not on the CPU, not contiguous or not plain memory (sparse, quantized, wrapped
// by functorch), the op carries a factor, operations are under way, or the group is not known here.
#include "torch/fast_path.h"

#include <Python.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/profiler/api.h>

#include <array>
#include <limits>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <unordered_map>

#include "plan/matching.h"
#include "torch/backend_announcing.h"
#include "torch/plan_bindings.h"
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
    if (dynamic_cast<AnnouncingBackend*>(backend.get()) != nullptr) backends_[group] = backend;
  }
  void forget(PyObject* group) { backends_.erase(group); }
  std::size_t num_groups() const { return backends_.size(); }

  bool all_reduce(PyObject* tensor, PyObject* op, PyObject* group) {
    const std::optional<c10d::ReduceOp::RedOpType> known_op = find(op);
    if (!known_op || !is_plain(tensor)) return false;
    return call(group, [&](AnnouncingBackend& ring) {
      return ring.try_all_reduce_sync(THPVariable_Unpack(tensor), *known_op);
    });
  }

  bool reduce_scatter(PyObject* output, PyObject* input, PyObject* op, PyObject* group) {
    const std::optional<c10d::ReduceOp::RedOpType> known_op = find(op);
    if (!known_op || !is_plain(output) || !is_plain(input)) return false;
    return call(group, [&](AnnouncingBackend& ring) {
      return ring.try_reduce_scatter_sync(THPVariable_Unpack(output), THPVariable_Unpack(input),
                                          *known_op);
    });
  }

  bool all_gather(PyObject* output, PyObject* input, PyObject* group) {
    if (!is_plain(output) || !is_plain(input)) return false;
    return call(group, [&](AnnouncingBackend& ring) {
      return ring.try_all_gather_sync(THPVariable_Unpack(output), THPVariable_Unpack(input));
    });
  }

  bool broadcast(PyObject* tensor, PyObject* root, PyObject* group) {
    const std::optional<std::uint64_t> known_root = find_number(root);
    if (!known_root || !is_plain(tensor)) return false;
    return call_with(group, *known_root, [&](AnnouncingBackend& ring, int rank) {
      return ring.try_broadcast_sync(THPVariable_Unpack(tensor), rank);
    });
  }

  bool reduce(PyObject* tensor, PyObject* root, PyObject* op, PyObject* group) {
    const std::optional<c10d::ReduceOp::RedOpType> known_op = find(op);
    const std::optional<std::uint64_t> known_root = find_number(root);
    if (!known_op || !known_root || !is_plain(tensor)) return false;
    return call_with(group, *known_root, [&](AnnouncingBackend& ring, int rank) {
      return ring.try_reduce_sync(THPVariable_Unpack(tensor), rank, *known_op);
    });
  }

  bool all_to_all(PyObject* output, PyObject* input, PyObject* group) {
    if (!is_plain(output) || !is_plain(input)) return false;
    return call(group, [&](AnnouncingBackend& ring) {
      return ring.try_all_to_all_sync(THPVariable_Unpack(output), THPVariable_Unpack(input));
    });
  }

  bool message(shm::Message::Kind kind, PyObject* tensor, PyObject* peer, PyObject* group,
               PyObject* tag) {
    return with_message(tensor, peer, group, tag, [&](AnnouncingBackend& ring, int rank, int tag) {
      return ring.try_message_sync(kind, THPVariable_Unpack(tensor), rank, tag);
    });
  }

  // Null in place of False.
  RingBackend::WorkPtr begin_message(shm::Message::Kind kind, PyObject* tensor, PyObject* peer,
                                     PyObject* group, PyObject* tag) {
    RingBackend::WorkPtr work;
    with_message(tensor, peer, group, tag, [&](AnnouncingBackend& ring, int rank, int tag) {
      work = ring.begin_message(kind, THPVariable_Unpack(tensor), rank, tag);
      return work.defined();
    });
    return work;
  }

  bool barrier(PyObject* group) {
    return call(group, [](AnnouncingBackend& ring) { return ring.try_barrier_sync(); });
  }

 private:
  static constexpr std::uint64_t kMostTag = std::numeric_limits<int>::max();

  static bool is_plain(PyObject* tensor) {
    if (Py_TYPE(tensor) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) return false;
    return ringcomm::is_plain(THPVariable_Unpack(tensor));
  }

  std::optional<c10d::ReduceOp::RedOpType> find(PyObject* op) const {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].ptr() == op) return static_cast<c10d::ReduceOp::RedOpType>(i);
    }
    return std::nullopt;
  }

  // A tag, or a rank of the default group, as roots and peers are given.
  static std::optional<std::uint64_t> find_number(PyObject* object) {
    if (!PyLong_CheckExact(object)) return std::nullopt;
    const long number = PyLong_AsLong(object);
    if (number >= 0) return static_cast<std::uint64_t>(number);
    PyErr_Clear();  // of a number that is no long
    return std::nullopt;
  }

  // As `call`, where it may be a message's; carry_out(ring, the peer's rank there, the tag).
  template <typename CarryOut>
  bool with_message(PyObject* tensor, PyObject* peer, PyObject* group, PyObject* tag,
                    CarryOut&& carry_out) const {
    const std::optional<std::uint64_t> known_peer = find_number(peer);
    const std::optional<std::uint64_t> known_tag = find_number(tag);
    if (!known_peer || !known_tag || *known_tag > kMostTag || !is_plain(tensor)) return false;
    return call_with(group, *known_peer, [&](AnnouncingBackend& ring, int rank) {
      return carry_out(ring, rank, static_cast<int>(*known_tag));
    });
  }

  // As `call`, where that rank is in the group; carry_out(ring, its rank there).
  template <typename CarryOut>
  bool call_with(PyObject* group, std::uint64_t global_rank, CarryOut&& carry_out) const {
    return call(group, [&](AnnouncingBackend& ring) {
      const std::optional<int> rank = ring.find(global_rank);
      return rank && carry_out(ring, *rank);
    });
  }

  // carry_out(ring), without the GIL, where the group's ring can be called now.
  template <typename CarryOut>
  bool call(PyObject* group, CarryOut&& carry_out) const {
    if (torch::profiler::impl::profilerEnabled()) return false;
    if (c10::impl::TorchDispatchModeTLS::stack_len() > 0) return false;
    const py::object container = world_.container();
    const py::object called = world_.group_to_call(container, group);
    const auto known = backends_.find(called.ptr());
    if (known == backends_.end() || !world_.knows(container, called)) return false;
    // While Python goes on elsewhere, the group may end.
    const c10::intrusive_ptr<c10d::Backend> ring = known->second;
    const py::gil_scoped_release release;
    return carry_out(static_cast<AnnouncingBackend&>(*ring));
  }

  const World world_;
  std::array<py::object, 16> ops_;
  std::unordered_map<PyObject*, c10::intrusive_ptr<c10d::Backend>> backends_;
};

// Never destroyed, as threads may call until the process ends. Guarded by the GIL.
FastPath* fast_path = nullptr;

PyObject* to_python(bool is_done) { return PyBool_FromLong(is_done); }
PyObject* to_python(const RingBackend::WorkPtr& work) { return py::cast(work).release().ptr(); }

// A Python function of `n` arguments, all by position.
template <int n, typename Call>
PyObject* call_fast(PyObject* const* args, Py_ssize_t num_args, Call&& call) {
  if (num_args != n) {
    return PyErr_Format(PyExc_TypeError, "takes %d arguments, got %zd", n, num_args);
  }
  try {
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

using Args = PyObject* const*;

PyObject* try_all_reduce_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<3>(args, num_args,
                      [](FastPath& path, Args a) { return path.all_reduce(a[0], a[1], a[2]); });
}
PyObject* try_reduce_scatter_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<4>(args, num_args, [](FastPath& path, Args a) {
    return path.reduce_scatter(a[0], a[1], a[2], a[3]);
  });
}
PyObject* try_all_gather_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<3>(args, num_args,
                      [](FastPath& path, Args a) { return path.all_gather(a[0], a[1], a[2]); });
}
PyObject* try_broadcast_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<3>(args, num_args,
                      [](FastPath& path, Args a) { return path.broadcast(a[0], a[1], a[2]); });
}
PyObject* try_reduce_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<4>(args, num_args,
                      [](FastPath& path, Args a) { return path.reduce(a[0], a[1], a[2], a[3]); });
}
PyObject* try_all_to_all_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<3>(args, num_args,
                      [](FastPath& path, Args a) { return path.all_to_all(a[0], a[1], a[2]); });
}
using Kind = shm::Message::Kind;
template <Kind kind>
PyObject* try_message_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<4>(args, num_args, [](FastPath& path, Args a) {
    return path.message(kind, a[0], a[1], a[2], a[3]);
  });
}
template <Kind kind>
PyObject* begin_message(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<4>(args, num_args, [](FastPath& path, Args a) {
    return path.begin_message(kind, a[0], a[1], a[2], a[3]);
  });
}
PyObject* try_barrier_sync(PyObject*, Args args, Py_ssize_t num_args) {
  return call_fast<1>(args, num_args, [](FastPath& path, Args a) { return path.barrier(a[0]); });
}

template <PyObject* (*function)(PyObject*, Args, Py_ssize_t)>
PyMethodDef method(const char* name, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL, doc};
}

PyMethodDef methods[] = {
    method<try_all_reduce_sync>("try_all_reduce_sync",
                                "try_all_reduce_sync(tensor, op, group) -> bool"),
    method<try_reduce_scatter_sync>("try_reduce_scatter_sync",
                                    "try_reduce_scatter_sync(output, input, op, group) -> bool"),
    method<try_all_gather_sync>("try_all_gather_sync",
                                "try_all_gather_sync(output, input, group) -> bool"),
    method<try_broadcast_sync>("try_broadcast_sync",
                               "try_broadcast_sync(tensor, src, group) -> bool"),
    method<try_reduce_sync>("try_reduce_sync", "try_reduce_sync(tensor, dst, op, group) -> bool"),
    method<try_all_to_all_sync>("try_all_to_all_sync",
                                "try_all_to_all_sync(output, input, group) -> bool"),
    method<try_message_sync<Kind::kSend>>("try_send_sync",
                                          "try_send_sync(tensor, dst, group, tag) -> bool"),
    method<try_message_sync<Kind::kRecv>>("try_recv_sync",
                                          "try_recv_sync(tensor, src, group, tag) -> bool"),
    method<begin_message<Kind::kSend>>("try_isend_sync",
                                       "try_isend_sync(tensor, dst, group, tag) -> Work | None"),
    method<begin_message<Kind::kRecv>>("try_irecv_sync",
                                       "try_irecv_sync(tensor, src, group, tag) -> Work | None"),
    method<try_barrier_sync>("try_barrier_sync", "try_barrier_sync(group) -> bool"),
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
