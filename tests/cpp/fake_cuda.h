// As much of CUDA as csrc/gpu/nccl/ calls, on the host, for tests where there is no GPU: devices
// and their memory. Streams, events and graphs have files of their own; so have kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <set>

namespace fake {

extern std::set<int> contexts;  // devices that were made current

extern std::atomic<int> num_multiprocessors;

extern std::atomic<int> num_allocations;     // that are not freed
extern std::atomic<bool> has_room;           // for allocations
extern std::atomic<int> failing_allocation;  // counts down to the one that fails, twice
extern constinit thread_local bool failed_here;
extern std::atomic<bool> opens_memory;  // of other processes

// What this thread gets when it opens memory of another process: that memory, or what only seems to
// be it: a copy, or other bytes.
enum class Opened { kSame, kCopy, kOther };
extern constinit thread_local Opened opened_here;
// The rank whose device reads other bytes than are in other ranks' memory, and the one whose writes
// there are lost.
extern std::atomic<int> misreading_rank;
extern std::atomic<int> muted_rank;
// The rank whose probes do not end.
extern std::atomic<int> hanging_rank;
// The rank whose fused kernels do not begin.
extern std::atomic<int> delayed_rank;
extern std::atomic<bool> has_native_atomics;  // between any two devices
extern std::atomic<bool> sees_all_devices;    // and not its own alone

// Bytes of the device that this thread has allocated, and that are not freed.
std::size_t held_by_this_thread();

// The memory that this thread has allocated goes, as that of a process that ends.
void end_process_of_this_thread();

// What a call returns. CUDA keeps an error for the thread until it asks for its last one.
cudaError_t returned(cudaError_t result);

}  // namespace fake
