#include "gpu/nccl/await.h"

#include <chrono>
#include <thread>

#include "core/deadline.h"
#include "core/status.h"

namespace ringcomm::nccl {
namespace {

// The words after "Timed out after 3 s".
std::string describe(const Awaited& awaited, const Members& members) {
  const auto those = [&members](const std::vector<int>& ranks) {
    return ", waiting for " + members.names(ranks) +
           (ranks.size() == 1 ? ", which has" : ", which have");
  };
  if (!awaited.absent.empty()) return those(awaited.absent) + " not come";
  if (!awaited.busy.empty()) return those(awaited.busy) + " come, and not connected";
  return ", though all ranks have come: NCCL does not connect them";
}

void check_not_gone(Group& group, const std::vector<int>& peers, const std::string& doing) {
  for (const int peer : peers) {
    std::string how;
    if (peer == group.rank || !group.gone(peer, &how)) continue;
    throw group.fail(ErrorKind::kPeerDied,
                     doing + ": " + group.members.name(peer) + " will not answer, " + how);
  }
}

}  // namespace

void await(Group& group, const Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress, const std::function<Awaited()>& awaited) {
  const std::string who = group.members.name(group.rank) + " in " + doing;
  Clock::time_point look_next = Clock::now() + kLookEvery;
  while (!progress()) {
    const Clock::time_point now = Clock::now();
    if (now >= look_next) {
      look_next = now + kLookEvery;
      check_interrupt();
      if (group.broken()) group.check(doing);
      const Awaited missing = awaited();
      const std::string since = who + " after " + describe_seconds(deadline.waited());
      check_not_gone(group, missing.absent, since);
      check_not_gone(group, missing.busy, since);
      if (now - deadline.start > deadline.timeout) {
        throw group.fail(ErrorKind::kTimeout, who + ": Timed out after " +
                                                  describe_seconds(deadline.waited()) +
                                                  describe(missing, group.members));
      }
    }
    std::this_thread::sleep_for(kPollEvery);
  }
}

}  // namespace ringcomm::nccl
