#include "torch/bench_bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace ringcomm {
namespace {

// Any of torch's backends, so that all are timed by the same loop.
void repeat_all_reduce(const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor,
                       c10d::ReduceOp::RedOpType op, int repeats) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  for (int i = 0; i < repeats; ++i) backend->allreduce(tensors, options)->wait();
}

}  // namespace

void bind_bench(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("repeat_all_reduce", &repeat_all_reduce, py::arg("backend"), py::arg("tensor"),
             py::arg("op"), py::arg("repeats"), py::call_guard<py::gil_scoped_release>(),
             "Calls all_reduce in place, and wait() on its work, so many times.");
}

}  // namespace ringcomm
