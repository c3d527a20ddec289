// Processes of this host, what a child inherits by fork(), and the environment.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace ringcomm {

// A process of this host, and whether it still runs.
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

// The id of the running kernel: processes with different ones are on different hosts. Empty if
// /proc/sys is hidden.
std::string boot_id();

// What can be printed of it; "?" if it is empty.
std::string host_name();

// Whether this process is the one that made the object, and not a child that inherited it by
// fork(). A child inherits memory that is shared with peers which do not know the child, and
// threads that do not run in it. It must leave both alone.
class ForkGuard {
 public:
  ForkGuard() : generation_(generation()) {}
  bool is_here() const { return generation_ == generation(); }

 private:
  // The number of forks between this process and the first.
  static int generation();

  const int generation_;
};

// Environment variables as they are read here and in Python (ringcomm/environment.py): an empty one
// counts as not set.

// Null if it is not set, or empty.
inline const char* value_of_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// Whether a switch is on. Words are as torch has them; what is none of them has been refused when
// the group was made.
bool is_switched_on(const char* name);

}  // namespace ringcomm
