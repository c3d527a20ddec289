// Tensors in memory that the peers' processes can map (shm/arena.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace ringcomm {

// From the first to the second, what this thread makes on the CPU lies in memory that peers can
// map. They nest.
void begin_shared_memory();
void end_shared_memory();

struct SharedMemoryBlock {
  SharedMemoryBlock() { begin_shared_memory(); }
  ~SharedMemoryBlock() { end_shared_memory(); }
  SharedMemoryBlock(const SharedMemoryBlock&) = delete;
  SharedMemoryBlock& operator=(const SharedMemoryBlock&) = delete;
};

// Whether the tensor lies in memory of this process that peers can map.
bool is_shared(const at::Tensor& tensor);

}  // namespace ringcomm
