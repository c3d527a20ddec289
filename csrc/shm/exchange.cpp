#include "shm/exchange.h"

namespace ringcomm::shm {

std::byte* Exchange::begin(Call& call) {
  if (group_.broken()) group_.check(describe(call));
  call.sequence = ++sequence_;
  return announcement(group_.rank).payload();
}

void Exchange::announce(const Call& call) {
  Announcement& mine = announcement(group_.rank);
  mine.call = call;
  mine.sequence.store(sequence_, std::memory_order_release);
}

void Exchange::await_all(const Deadline& deadline) {
  const Call& ours = announcement(group_.rank).call;
  bool all_match = true;
  Idle idle(group_, deadline);
  for (int r = 0; r < group_.world_size; ++r) {
    while (!announced(r)) {
      idle.pause([&] {
        Blocked blocked{{}, describe_numbered(ours)};
        for (int peer = 0; peer < group_.world_size; ++peer) {
          if (!announced(peer)) blocked.peers.push_back(peer);
        }
        return blocked;
      });
    }
    all_match = all_match && announcement(r).call.matches(ours);
  }
  if (!all_match) mismatch();
}

void Exchange::mismatch() {
  std::vector<std::optional<Call>> calls;
  for (int r = 0; r < group_.world_size; ++r) calls.push_back(announcement(r).call);
  end();
  throw Error(ErrorKind::kMismatch, "rank " + std::to_string(group_.rank) + " in collective #" +
                                        std::to_string(sequence_) + ": the ranks disagree: " +
                                        describe_mismatch(calls) + ". Nothing was sent.");
}

void Exchange::end() {
  group_.segment().state(group_.rank).completed.store(sequence_, std::memory_order_relaxed);
}

}  // namespace ringcomm::shm
