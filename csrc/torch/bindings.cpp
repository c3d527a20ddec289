// The Python module ringcomm._C.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "torch/backend.h"
#include "torch/bench_bindings.h"
#include "torch/plan_bindings.h"
#include "torch/profiler.h"
#include "torch/reduce_bindings.h"
#include "torch/stream_bindings.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

Algorithm algorithm_named(const std::string& name) {
  if (name == "auto") return Algorithm::kAuto;
  if (name == "ring") return Algorithm::kRing;
  if (name == "direct") return Algorithm::kDirect;
  TORCH_CHECK_VALUE(false, "algorithm is \"", name, "\"; it must be auto, ring or direct");
}

c10::intrusive_ptr<c10d::Backend> create_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
    std::chrono::milliseconds timeout, const std::string& algorithm, int num_channels,
    std::size_t slice_nbytes, int max_ctas, const std::string& group_name,
    std::vector<std::uint64_t> global_ranks, bool graphs) {
  auto options = c10::make_intrusive<RingBackend::Options>(timeout);
  options->algorithm = algorithm_named(algorithm);
  options->num_channels = num_channels;
  options->slice_nbytes = slice_nbytes;
  options->max_ctas = max_ctas;
  options->graphs = graphs;
  options->group_name = group_name;
  options->global_ranks_in_group = std::move(global_ranks);
  return c10::make_intrusive<RingBackend>(store, rank, world_size, std::move(options));
}

bool all_reduce_now(const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor,
                    c10d::ReduceOp::RedOpType op) {
  auto* ring = dynamic_cast<RingBackend*>(backend.get());
  return ring != nullptr && op != c10d::ReduceOp::PREMUL_SUM && ring->all_reduce_now(tensor, op);
}

}  // namespace
}  // namespace ringcomm

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "ringcomm's compiled half: the backend \"ring\", and plans.";
  m.def("create_backend", &ringcomm::create_backend, py::arg("store"), py::arg("rank"),
        py::arg("world_size"), py::arg("timeout"), py::arg("algorithm"), py::arg("num_channels"),
        py::arg("slice_nbytes"), py::arg("max_ctas"), py::arg("group_name"),
        py::arg("global_ranks"), py::arg("graphs") = false,
        py::call_guard<py::gil_scoped_release>(),
        "One rank's backend. Blocks until all ranks of the group have joined.");
  m.def("all_reduce_now", &ringcomm::all_reduce_now, py::arg("backend"), py::arg("tensor"),
        py::arg("op"), py::call_guard<py::gil_scoped_release>(),
        "all_reduce in place on this thread; False, with nothing done, if that cannot be.");
  m.def("missing_for_cuda", &ringcomm::missing_for_cuda,
        "Why this build cannot send CUDA tensors, and what to do; empty if it can.");
  m.attr("MAX_WORLD_SIZE") = ringcomm::kMaxWorldSize;
  ringcomm::bind_bench(m);
  ringcomm::bind_plan(m);
  ringcomm::bind_reduce(m);
  ringcomm::bind_streams(m);
  ringcomm::show_spans_to_torch();
}
