// How every collective begins: each rank announces its call, and, when it is small, its whole
// input.
//
// Invariant: a rank announces call number s + 1 only after it is done with call s, and ends call s
// only after it has seen everybody's announcement of s. So when anybody announces s + 2, nobody
// reads announcement s any more, and two announcements per rank, used in turn, are enough: no
// acknowledgement is ever written.
//
// Since all ranks see all calls before any data moves, calls that do not fit together are an error
// on every rank, and the group goes on unharmed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shm/group.h"
#include "shm/idle.h"

namespace ringcomm::shm {

class Exchange {
 public:
  explicit Exchange(Group& group) : group_(group) {}

  // The number of collectives announced so far, this one included.
  std::uint64_t sequence() const { return sequence_; }

  // Begins a collective and numbers its call; throws if the group is broken. The payload (at most
  // geometry.eager_nbytes) is written between begin and announce; announce makes both visible to
  // the peers.
  std::byte* begin(Call& call);
  void announce(const Call& call);

  // Waits until all ranks have announced; throws kMismatch if a call differs from ours.
  void await_all(const Deadline& deadline);

  const Call& call_of(int rank) { return announcement(rank).call; }
  const std::byte* payload_of(int rank) { return announcement(rank).payload(); }

  // The collective is done on this rank.
  void end();

 private:
  Announcement& announcement(int rank) { return group_.segment().announcement(rank, sequence_); }
  bool announced(int rank) {
    return announcement(rank).sequence.load(std::memory_order_acquire) == sequence_;
  }
  [[noreturn]] void mismatch();

  Group& group_;
  std::uint64_t sequence_ = 0;
};

}  // namespace ringcomm::shm
