#include <cuda_runtime.h>

#include <array>
#include <utility>

#include "fused/launch.h"
#include "fused/rows.h"

namespace ringcomm::fused {
namespace {

// By dtype.
template <int... dtypes>
std::array<KernelRow, kNumDTypes> make_table(std::integer_sequence<int, dtypes...>) {
  return {kernel_row<static_cast<DType>(dtypes)>()...};
}

const std::array<KernelRow, kNumDTypes>& table() {
  static const auto kTable = make_table(std::make_integer_sequence<int, kNumDTypes>());
  return kTable;
}

}  // namespace

cudaError_t load_kernels() {
  for (const KernelRow& row : table()) {
    for (const Kernel kernel : row) {
      if (kernel == nullptr) continue;
      cudaFuncAttributes attributes;
      const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t launch(const Job& job, const Reduction& reduction, cudaStream_t stream) {
  const KernelKey key = kernel_key(reduction.dtype, effective_op(reduction));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(job.num_lanes));
  config.blockDim = dim3(static_cast<unsigned>(threads_per_block(key)));
  config.stream = stream;
  const KernelRow& row = table()[static_cast<std::size_t>(key.dtype)];
  return cudaLaunchKernelEx(&config, row[static_cast<std::size_t>(key.op)], job);
}

}  // namespace ringcomm::fused
