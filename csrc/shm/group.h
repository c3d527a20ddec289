// One rank's view of its group: who it is, the shared memory, and whether the group still works.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "shm/segment.h"

namespace ringcomm::shm {

using Clock = std::chrono::steady_clock;

class Group {
 public:
  Group(Store& store, int rank, int world_size, std::chrono::milliseconds timeout);

  const int rank;
  const int world_size;
  // Iterations a wait spins before it yields its core: none where ranks outnumber the cores.
  const int spins;

  Segment& segment() { return segment_; }
  const Geometry& geometry() const { return segment_.geometry(); }

  // Throws what broke the group, if anything has.
  void check(const std::string& doing);
  bool broken() {
    return closed_.load(std::memory_order_relaxed) ||
           segment_.header().failed.load(std::memory_order_relaxed) != 0;
  }

  // Breaks the group for all ranks: `text` says what happened, and every rank that waits or calls
  // later raises it. Slices may be half read by then, so a broken group stays broken. Returns the
  // error for this rank to throw.
  Error fail(ErrorKind kind, const std::string& text);

  // Leaves the group: later calls of this rank raise `reason`, and peers that would wait for this
  // rank are told it has left. Any thread; the first reason stays.
  void close(const std::string& reason);

  // What is known of a rank that is being waited for, for an error message: "rank 2 (its last
  // collective was #16), which waits for rank 3 (...)".
  std::string describe_peer(int peer);

  // Whether the peer has left or its process has ended, and so will never do anything again.
  bool gone(int peer, std::string* how);

 private:
  Segment segment_;
  std::once_flag close_once_;
  std::atomic<bool> closed_{false};
  std::string close_reason_;
};

}  // namespace ringcomm::shm
