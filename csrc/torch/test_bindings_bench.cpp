#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "torch/test_bindings.h"

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

// What no message between two cores can be faster than twice of. The lines are those of the first
// number and of the 16th, which no prefetcher fetches with it.
double line_round_trip(const at::Tensor& shared, bool begins, std::int64_t rounds) {
  using std::chrono::steady_clock;
  TORCH_CHECK_VALUE(shared.scalar_type() == at::kLong && shared.is_contiguous() &&
                        shared.is_cpu() && shared.numel() >= 32,
                    "ring: line_round_trip: takes 32 int64 that two processes share");
  auto* numbers = shared.mutable_data_ptr<std::int64_t>();
  std::atomic_ref<std::int64_t> there(numbers[0]), back(numbers[16]);
  const auto await = [](std::atomic_ref<std::int64_t> number, std::int64_t value) {
    const auto began = steady_clock::now();
    for (std::uint32_t looks = 1; number.load(std::memory_order_acquire) != value; ++looks) {
      if (looks % (1 << 20) != 0) continue;
      TORCH_CHECK(steady_clock::now() - began < std::chrono::seconds(10),
                  "ring: line_round_trip: the other process does not answer");
    }
  };
  const auto began = steady_clock::now();
  for (std::int64_t round = 1; round <= rounds; ++round) {
    if (begins) {
      there.store(round, std::memory_order_release);
      await(back, round);
    } else {
      await(there, round);
      back.store(round, std::memory_order_release);
    }
  }
  return std::chrono::duration<double>(steady_clock::now() - began).count() /
         static_cast<double>(rounds);
}

}  // namespace

void bind_bench(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("repeat_all_reduce", &repeat_all_reduce, py::arg("backend"), py::arg("tensor"),
             py::arg("op"), py::arg("repeats"), py::call_guard<py::gil_scoped_release>(),
             "Calls all_reduce in place, and wait() on its work, so many times.");
  module.def("line_round_trip", &line_round_trip, py::arg("shared"), py::arg("begins"),
             py::arg("rounds"), py::call_guard<py::gil_scoped_release>(),
             "Seconds for a cache line to another core and one back, where one of two processes "
             "begins; `shared` is 32 int64, zeros at first.");
}

}  // namespace ringcomm
