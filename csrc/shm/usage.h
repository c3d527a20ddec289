// How much shared memory the groups of this process hold: for the error that says there is no more.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string>

#include "shm/layout.h"
#include "shm/memory_file.h"

namespace ringcomm::shm {

// What one rank has made in one group. Those of a process know of each other, as it is the process
// that runs out of memory.
class Usage {
 public:
  // `group` describes the rank's group: "rank 0 of 4 in group \"default\"".
  explicit Usage(std::string group);
  ~Usage();
  Usage(const Usage&) = delete;
  Usage& operator=(const Usage&) = delete;

  const std::string& group() const { return group_; }
  void add(Area area, std::size_t nbytes) { held_[static_cast<std::size_t>(area)] += nbytes; }
  void remove(Area area, std::size_t nbytes) { held_[static_cast<std::size_t>(area)] -= nbytes; }
  std::size_t nbytes() const;

  // "6.2 MiB in 2 groups: 5.1 MiB as rank 0 of 4 in group \"dp\" (announcements 68 KiB, outboxes
  // 5 MiB); ...", the largest first.
  static std::string describe_all();

 private:
  std::string describe() const;

  const std::string group_;
  std::array<std::atomic<std::size_t>, kNumAreas> held_{};
};

// "68 KiB", "5.1 MiB"
std::string describe_nbytes(std::size_t nbytes);

// The error for a rank that did not get what it needs: what it needs and holds, what is free, and
// how to get more. `code` is File::allocate's.
Error out_of_memory(const Usage& usage, Area area, std::size_t nbytes, const File& file, int code);

}  // namespace ringcomm::shm
