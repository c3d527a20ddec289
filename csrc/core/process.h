// A process of this host, and whether it still runs.
#pragma once

#include <cstdint>
#include <string>

namespace ringcomm {

struct Process {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;     // clock ticks since boot: process numbers are used again
  std::uint64_t pid_namespace = 0;  // a number means nothing in another namespace

  static Process self();
  // Seconds since boot.
  double started() const;

  // False only if it is certain that the process has ended: whatever cannot be read, and a process
  // of another namespace, counts as running.
  bool runs() const;
  // By a signal, or by a debugger.
  bool is_stopped() const;
};

// Of the kernel that runs: processes with different ones are on different hosts.
std::string boot_id();

std::string host_name();

}  // namespace ringcomm
