#include <cuda_runtime.h>

#include <array>
#include <utility>

#include "fused/launch.h"
#include "fused/rows.h"
#include "fused/threads.h"

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

cudaError_t load(Kernel kernel, int* arch) {
  if (kernel == nullptr) return cudaSuccess;
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) *arch = 10 * attributes.ptxVersion;
  return error;
}

KernelKey key_of(const Reduction& reduction) {
  return kernel_key(reduction.dtype, effective_op(reduction));
}

const Kernels& kernels_of(KernelKey key) {
  return table()[static_cast<std::size_t>(key.dtype)][static_cast<std::size_t>(key.op)];
}

}  // namespace

cudaError_t load_kernels(int* arch) {
  for (const KernelRow& row : table()) {
    for (const Kernels& kernels : row) {
      if (const cudaError_t error = load(kernels.lanes, arch); error != cudaSuccess) return error;
      if (const cudaError_t error = load(kernels.eager, arch); error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t launch(const Job& job, const Reduction& reduction, int arch, cudaStream_t stream) {
  const KernelKey key = key_of(reduction);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3((job.num_lanes + kLanesPerBlock - 1) / kLanesPerBlock);
  config.blockDim = dim3(threads_per_block(key, arch));
  config.dynamicSmemBytes = job.script.nbytes <= kMostSharedBytes ? job.script.nbytes : 0;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernels_of(key).lanes, job);
}

cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream) {
  const KernelKey key = job.gathers ? kBits : key_of(reduction);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(job.num_lanes);
  config.blockDim = dim3(eager_threads(key));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernels_of(key).eager, job);
}

}  // namespace ringcomm::fused
