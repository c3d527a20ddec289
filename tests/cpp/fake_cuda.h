// As much of CUDA as csrc/nccl/ calls, on the host, for tests where there is no GPU: devices and
// their memory. Streams, events and graphs have files of their own; so have kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <set>

namespace fake {

extern std::set<int> contexts;  // devices that were made current

extern std::atomic<int> num_allocations;     // that are not freed
extern std::atomic<bool> has_room;           // for allocations
extern std::atomic<int> failing_allocation;  // counts down to the one that fails, twice
extern constinit thread_local bool failed_here;
extern std::atomic<bool> opens_memory;  // of other processes

// What a call returns. CUDA keeps an error for the thread until it asks for its last one.
cudaError_t returned(cudaError_t result);

}  // namespace fake
