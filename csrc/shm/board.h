// Where ranks tell each other what they have enqueued on their devices. Nobody waits for it: it is
// read when something seems wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shm/group.h"

namespace ringcomm::shm {

class Board {
 public:
  explicit Board(Group& group) : group_(group) {}

  // This rank has enqueued the call, whose sequence number is one more than that of the last.
  void enqueue(const Call& call);
  // This rank's collectives up to this one are done.
  void complete(std::uint64_t sequence);

  std::uint64_t enqueued(int rank) {
    return group_.segment().state(rank).device_enqueued.load(std::memory_order_acquire);
  }
  std::uint64_t completed(int rank) {
    return group_.segment().state(rank).device_completed.load(std::memory_order_acquire);
  }

  // This rank will enqueue nothing more, and nothing is under way.
  void close();
  bool all_closed();

  // What the rank has enqueued under this number; nothing if that is not known (yet, or any more).
  std::optional<Call> find(int rank, std::uint64_t sequence);

  // Who called something else than this rank did under this number, or an empty string.
  std::string describe_mismatch(std::uint64_t sequence);

  // What is known of the ranks that hold up this rank's collective: those that have not enqueued
  // it, or, if all have, those that are not done with it.
  std::string describe_awaited(std::uint64_t sequence);

 private:
  Group& group_;
};

}  // namespace ringcomm::shm
