// Launches the fused kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "fused/job.h"
#include "reduce/reduction.h"

namespace ringcomm::fused {

// Of a thread block. Two packs of two inputs for each are on their way at once: 32 KiB.
inline constexpr int kThreads = 512;

// Loads all kernels for the current device. Otherwise the first launch of each would, and wait for
// kernels that run.
cudaError_t load_kernels();

// A block for each of the job's lanes, enqueued on `stream` of the current device. Returns what the
// launch returned.
cudaError_t launch(const Job& job, const Reduction& reduction, cudaStream_t stream);

}  // namespace ringcomm::fused
