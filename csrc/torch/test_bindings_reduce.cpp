#include <torch/csrc/utils/pybind.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "reduce/host_table.h"
#include "torch/tensors.h"
#include "torch/test_bindings.h"

#ifdef RINGCOMM_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "reduce/device.h"
#endif

namespace ringcomm {
namespace {

constexpr const char* kReduceLocal = "reduce_local";

std::vector<std::string> host_instructions() {
  std::vector<std::string> names;
  for (const HostIsa& isa : supported_host_isas()) names.emplace_back(isa.name);
  return names;
}

const HostTable& table_of(const std::string& instructions) {
  std::string names;
  for (const HostIsa& isa : supported_host_isas()) {
    if (instructions == isa.name) return *isa.table;
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  TORCH_CHECK_VALUE(false, "ring: ", kReduceLocal, ": instructions is ", instructions,
                    "; this machine has ", names);
}

void reduce_local(const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                  c10d::ReduceOp::RedOpType op, const std::string& instructions) {
  TORCH_CHECK_VALUE(!inputs.empty(), "ring: ", kReduceLocal,
                    ": takes at least one input, got none");
  TORCH_CHECK_VALUE(op != c10d::ReduceOp::PREMUL_SUM, "ring: ", kReduceLocal,
                    ": PREMUL_SUM needs a factor, which this function does not take");
  std::vector<const void*> pointers;
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK_VALUE(
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() &&
            input.device() == output.device() && input.is_contiguous() && output.is_contiguous(),
        "ring: ", kReduceLocal, ": inputs and output must be contiguous and agree in dtype, ",
        "number of elements and device; got an input of ", input.numel(), " ", input.scalar_type(),
        " on ", input.device(), " and an output of ", output.numel(), " ", output.scalar_type(),
        " on ", output.device());
    pointers.push_back(input.const_data_ptr());
  }
  const Elements elements = elements_to_reduce(output.scalar_type(), op, kReduceLocal);
  const Reduction reduction{
      .dtype = elements.dtype,
      .op = make_reduce(elements, op, kReduceLocal).op,
      .divisor = op == c10d::ReduceOp::AVG ? static_cast<int>(inputs.size()) : 1};
  const std::size_t count = elements.count(output);
  void* result = output.data_ptr();
#ifdef RINGCOMM_WITH_CUDA
  if (output.is_cuda()) {
    const c10::cuda::CUDAGuard guard(output.device());
    C10_CUDA_CHECK(reduce_device(reduction, pointers.data(), static_cast<int>(pointers.size()),
                                 &result, 1, count, c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  TORCH_CHECK_NOT_IMPLEMENTED(output.is_cpu(), "ring: ", kReduceLocal,
                              ": takes CPU tensors, and CUDA tensors where ringcomm was built with "
                              "CUDA; got one on ",
                              output.device());
  const auto num_inputs = static_cast<int>(pointers.size());
  if (instructions.empty()) {
    return reduce_host(reduction, pointers.data(), num_inputs, result, {}, count);
  }
  const HostKernel kernel =
      table_of(instructions)[static_cast<std::size_t>(reduction.dtype)]
                            [static_cast<std::size_t>(effective_op(reduction))];
  kernel(reduction, pointers.data(), num_inputs, 0, result, count);
}

}  // namespace

void bind_reduce(pybind11::module_& module) {
  module.def("reduce_local", &reduce_local, pybind11::arg("inputs"), pybind11::arg("output"),
             pybind11::arg("op"), pybind11::arg("instructions") = "",
             pybind11::call_guard<pybind11::gil_scoped_release>(),
             "Writes op over the inputs to output, in one pass, by the code that the executors "
             "use; on a GPU, on the current stream. instructions: of host_instructions(), for "
             "tensors on the CPU; empty: the last of them.");
  module.def("host_instructions", &host_instructions,
             "The instruction sets that the reductions are compiled for and this machine has.");
}

}  // namespace ringcomm
