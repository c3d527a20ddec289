// Launches the fused kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "fused/job.h"
#include "reduce/reduction.h"

namespace ringcomm::fused {

// Of the kernels for data that are but moved, too.
inline constexpr KernelKey kBits{DType::kUInt8, ReduceOp::kBor};

// 8-bit types have 16 values to a pack, and need more registers.
constexpr bool is_wide(KernelKey key) { return element_size(key.dtype) == 1 && key != kBits; }

// Of a lane. A thread block has a multiprocessor's registers to itself, in four parts: its 20 warps
// are 5 to each, and a thread has 96; with the 12 for 8-bit types, 168. Movers have 128 bytes on
// their way at once, which is 72 KiB in all.
inline constexpr int kControlThreads = 32;
constexpr int movers_per_lane(KernelKey key) { return is_wide(key) ? 160 : 288; }
constexpr int threads_per_block(KernelKey key) {
  return kLanesPerBlock * (movers_per_lane(key) + kControlThreads);
}

// Of a block that goes eagerly.
constexpr int eager_threads(KernelKey key) { return is_wide(key) ? 384 : 512; }

// Of a script, that a block copies.
inline constexpr std::size_t kMostSharedBytes = 32 << 10;

// Loads all kernels for the current device. Otherwise the first launch of each would, and wait for
// kernels that run.
cudaError_t load_kernels();

// A block for each of the job's lanes, enqueued on `stream` of the current device. Return what the
// launch returned.
cudaError_t launch(const Job& job, const Reduction& reduction, cudaStream_t stream);
cudaError_t launch_eager(const Job& job, const Reduction& reduction, cudaStream_t stream);

}  // namespace ringcomm::fused
