// Where the fused kernels are found, and how the host launches them.
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "gpu/fused/job.h"
#include "gpu/fused/probe.h"
#include "reduce/reduction.h"

namespace ringcomm::fused {

// The most bytes of a script that a block copies to shared memory.
inline constexpr std::size_t kMostSharedBytes = 32 << 10;

// Loads all kernels for the current device, and finds the architecture that they were compiled for:
// `arch` of threads.h. Otherwise the first launch of each kernel would load it, and wait for
// kernels that run.
cudaError_t load_kernels(int* arch);

// These enqueue a kernel on `stream` of the current device, and return what the launch returned.
cudaError_t launch(const Job& job, const Reduction& reduction, int arch, cudaStream_t stream);
cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream);
// The two kernels of a probe.
cudaError_t launch_writes(const Probe& probe, cudaStream_t stream);
cudaError_t launch_finds(const Probe& probe, cudaStream_t stream);

using Kernel = void (*)(Job);
struct Kernels {
  Kernel lanes = nullptr;
  Kernel eager = nullptr;
};
// By op; null where no reduction has the key.
using KernelRow = std::array<Kernels, kNumReduceOps>;

// Defined in kernels.h and instantiated in one device_TYPES.cu per few dtypes, because nvcc
// compiles every kernel once per architecture.
template <DType dtype>
KernelRow kernel_row();

}  // namespace ringcomm::fused
