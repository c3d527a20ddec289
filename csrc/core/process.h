// A process of this host, and whether it still runs.
#pragma once

#include <cstdint>
#include <string>

namespace ringcomm {

struct Process {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;     // clock ticks since boot: process numbers are used again
  std::uint64_t pid_namespace = 0;  // a number means nothing in another namespace; 0: not known

  static Process self();

  // What is seen of the process that has this number here, if it started at that time.
  enum class Look { kRuns, kEnded, kUnknown };
  Look look() const;
  // Seconds since boot.
  double started() const;

  // False only if it is certain that the process has ended: whatever cannot be read, and a process
  // of another namespace or of one that is not known, counts as running.
  bool runs() const;
  // By a signal, or by a debugger.
  bool is_stopped() const;

 private:
  bool is_numbered_here() const;
};

// Of the kernel that runs: processes with different ones are on different hosts. Empty where
// /proc/sys is hidden.
std::string boot_id();

// What can be printed of it; "?" if it is empty.
std::string host_name();

}  // namespace ringcomm
