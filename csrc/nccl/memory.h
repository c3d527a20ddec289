// Device memory of a group's own. It comes from CUDA and not from torch's allocator: what that
// allocates while a graph is captured or warmed up belongs to the graph's pool, which the group
// outlives.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace ringcomm::nccl {

// Makes other allocators that keep device memory for later use, as torch's does, give it back to
// CUDA.
using Reclaim = std::function<void()>;

// On the current device; freed with its last holder, which waits for what the device is doing.
// Where there is too little, it is tried once more after reclaim(). Throws Error (kLibrary).
std::shared_ptr<void> allocate(std::size_t nbytes, const Reclaim& reclaim);

// Keeps it as long as the process: the device, a graph or another rank may go on using it.
void keep_for_good(std::shared_ptr<void> memory);

}  // namespace ringcomm::nccl
