// Launches the fused kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "fused/job.h"
#include "reduce/reduction.h"

namespace ringcomm::fused {

// Of the kernels for data that are but moved, too.
inline constexpr KernelKey kBits{DType::kUInt8, ReduceOp::kBor};

// Of a thread block, which has a multiprocessor's registers to itself. With 512 a thread has 128 of
// them, and two packs of two inputs for each are on their way at once: 32 KiB. 8-bit types have 16
// values to a pack.
constexpr int threads_per_block(KernelKey key) {
  return element_size(key.dtype) == 1 && key != kBits ? 384 : 512;
}

// Loads all kernels for the current device. Otherwise the first launch of each would, and wait for
// kernels that run.
cudaError_t load_kernels();

// A block for each of the job's lanes, enqueued on `stream` of the current device. Return what the
// launch returned.
cudaError_t launch(const Job& job, const Reduction& reduction, cudaStream_t stream);
cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream);

}  // namespace ringcomm::fused
