#include <cuda_runtime.h>

#include <array>
#include <cstddef>

#include "gpu/fused/kernels.h"
#include "gpu/fused/launch.h"
#include "gpu/fused/probe.h"

namespace ringcomm::fused {

// In device_TYPES.cu: here they would be compiled once more.
extern template KernelTable kernel_table<DeviceTypes::kFloat>();
extern template KernelTable kernel_table<DeviceTypes::kFloat8>();
extern template KernelTable kernel_table<DeviceTypes::kInt>();

namespace {

using Tables = std::array<KernelTable, kNumDeviceTypes>;

const Tables& tables() {
  static const Tables kTables = {kernel_table<DeviceTypes::kFloat>(),
                                 kernel_table<DeviceTypes::kFloat8>(),
                                 kernel_table<DeviceTypes::kInt>()};
  return kTables;
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
  return tables()[static_cast<std::size_t>(device_types_of(key.dtype))]
                 [static_cast<std::size_t>(key.dtype)][static_cast<std::size_t>(key.op)];
}

template <typename Argument>
cudaError_t launch(void (*kernel)(Argument), const Argument& argument, int num_blocks,
                   int num_threads, std::size_t shared_nbytes, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = shared_nbytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, argument);
}

class ProbeMachine : public Signals {
 public:
  RINGCOMM_DEVICE ProbeMachine() : Signals(nullptr, 0) {}

  RINGCOMM_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  RINGCOMM_DEVICE int num_threads() const { return static_cast<int>(blockDim.x); }
};

__global__ void write_kernel(const __grid_constant__ Probe probe) {
  ProbeMachine machine;
  write_patterns(machine, probe);
}

__global__ void find_kernel(const __grid_constant__ Probe probe) {
  ProbeMachine machine;
  find_patterns(machine, probe);
}

}  // namespace

cudaError_t load_kernels(int* arch) {
  for (const KernelTable& table : tables()) {
    for (const KernelRow& row : table) {
      for (const Kernels& kernels : row) {
        if (const cudaError_t error = load(kernels.lanes, arch); error != cudaSuccess) return error;
        if (const cudaError_t error = load(kernels.eager, arch); error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t launch(const Job& job, const Reduction& reduction, int arch, cudaStream_t stream) {
  const KernelKey key = key_of(reduction);
  const int num_blocks = (job.num_lanes + kLanesPerBlock - 1) / kLanesPerBlock;
  const std::size_t copied = job.script.nbytes <= kMostSharedBytes ? job.script.nbytes : 0;
  return launch(kernels_of(key).lanes, job, num_blocks, threads_per_block(key, arch), copied,
                stream);
}

cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream) {
  const KernelKey key = job.gathers ? kBits : key_of(reduction);
  return launch(kernels_of(key).eager, job, job.num_lanes, eager_threads(key), 0, stream);
}

cudaError_t launch_writes(const Probe& probe, cudaStream_t stream) {
  return launch(write_kernel, probe, 1, kMaxRanks, 0, stream);
}

cudaError_t launch_finds(const Probe& probe, cudaStream_t stream) {
  return launch(find_kernel, probe, 1, kMaxRanks, 0, stream);
}

}  // namespace ringcomm::fused
