// Whether a peer's process still runs.
#pragma once

#include <cstdint>

namespace ringcomm::shm {

struct Process {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;     // clock ticks since boot: process numbers are used again
  std::uint64_t pid_namespace = 0;  // a number means nothing in another namespace

  static Process self();

  // False only if it is certain that the process has ended: whatever cannot be read, and a process
  // of another namespace, counts as running.
  bool runs() const;
};

}  // namespace ringcomm::shm
