#include "gpu/nccl/await.h"

#include "core/poll.h"
#include "core/status.h"

namespace ringcomm::nccl {
namespace {

// What follows "Timed out after 3 s (its timeout is 3 s)".
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
                     doing + ": " + will_not_answer(group.members.name(peer), how));
  }
}

}  // namespace

void await(Group& group, const Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress, const std::function<Awaited()>& awaited) {
  const std::string who = group.members.name(group.rank) + " in " + doing;
  for (Poll poll(kPollEvery); !progress(); poll.sleep()) {
    if (!poll.looks_around()) continue;
    check_interrupt();
    if (group.broken()) group.check(doing);
    const Awaited missing = awaited();
    check_not_gone(group, missing.absent, after(who, deadline));
    check_not_gone(group, missing.busy, after(who, deadline));
    if (!deadline.has_passed()) continue;
    throw group.fail(ErrorKind::kTimeout,
                     timed_out(who, deadline) + describe(missing, group.members));
  }
}

}  // namespace ringcomm::nccl
