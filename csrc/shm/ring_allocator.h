// Memory that one core writes and others read, used in rotation.
//
// To write a line that another core has read takes four times as long while that core still has it
// in its own caches. So what is written next lies behind what was written last, until the memory
// ends, which is when the others' caches have lost what was at its beginning.
#pragma once

#include <cstddef>

namespace ringcomm::shm {

class RingAllocator {
 public:
  // Where so many bytes lie in memory of `most`, which is at least as much.
  std::size_t take(std::size_t nbytes, std::size_t most) {
    const std::size_t at = next_ + nbytes <= most ? next_ : 0;
    next_ = at + nbytes;
    return at;
  }

 private:
  std::size_t next_ = 0;
};

}  // namespace ringcomm::shm
