// Reads of shared memory that a bad neighbour may write to at any time.
#pragma once

#include <atomic>
#include <cstring>
#include <type_traits>

namespace ringcomm::shm {

// A copy to be checked and then used: the compiler does not go back to the original.
template <typename T>
T read_once(const T& shared) {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
  std::memcpy(static_cast<void*>(&copy), static_cast<const void*>(&shared), sizeof(copy));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

}  // namespace ringcomm::shm
