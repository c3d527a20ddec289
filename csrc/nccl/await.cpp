#include "nccl/await.h"

#include <chrono>
#include <thread>

#include "core/interrupt.h"
#include "core/status.h"

namespace ringcomm::nccl {

void await(Group& group, const Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress, const std::function<std::vector<int>()>& absent) {
  const std::string who = group.members.name(group.rank) + " in " + doing;
  Clock::time_point look_next = Clock::now() + kLookEvery;
  while (!progress()) {
    const Clock::time_point now = Clock::now();
    if (now >= look_next) {
      look_next = now + kLookEvery;
      check_interrupt();
      if (group.broken()) group.check(doing);
      for (const int peer : absent()) {
        std::string how;
        if (!group.gone(peer, &how)) continue;
        throw group.fail(ErrorKind::kPeerDied,
                         who + " after " + describe_seconds(deadline.waited()) + ": " +
                             group.members.name(peer) + " will not answer, " + how);
      }
      if (now - deadline.start > deadline.timeout) {
        const std::vector<int> missing = absent();
        throw group.fail(
            ErrorKind::kTimeout,
            who + ": Timed out after " + describe_seconds(deadline.waited()) +
                (missing.empty()
                     ? ", though all ranks have come: NCCL does not connect them"
                     : ", waiting for " + group.members.names(missing) +
                           (missing.size() == 1 ? ", which has" : ", which have") + " not come"));
      }
    }
    std::this_thread::sleep_for(kPollEvery);
  }
}

}  // namespace ringcomm::nccl
