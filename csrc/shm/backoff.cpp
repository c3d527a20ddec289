#include "shm/backoff.h"

#include <algorithm>
#include <utility>

#include "core/deadline.h"

namespace ringcomm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Across hosts what comes soonest takes a crossing, and to be woken a twentieth of a millisecond.
constexpr microseconds kYieldFor = milliseconds(1), kYieldAcrossHosts = milliseconds(3);
constexpr int kCrossings = 2;
// A rank that waits longer sleeps longer, by such a part of the time waited so far, and where no
// bell rings, loses no more than that. What comes over the network ends a sleep as a bell does, but
// a rank that waits for both cannot sleep on both; and across hosts waits are long, and several
// follow each other in one call.
constexpr int kPartOfWait = 10, kPartOfWaitForBoth = 40;
constexpr microseconds kLongestSleep = milliseconds(10), kLongestSleepOnLinks = milliseconds(1);

microseconds yields_for(Group& group) {
  using Seconds = std::chrono::duration<double>;
  const Seconds crossings(kCrossings * group.segment().inter_host().link.latency);
  return std::chrono::duration_cast<microseconds>(
      std::clamp<Seconds>(crossings, kYieldFor, kYieldAcrossHosts));
}

}  // namespace

Backoff::Next Backoff::next() {
  now_ = Clock::now();
  if (since_ == Clock::time_point{}) {
    since_ = now_;
    yields_for_ = yields_for(group_);
    look_next_ = now_ + yields_for_;
  }
  if (overdue_ || !gone_.empty() || group_.broken()) return Next::kLook;
  if (deadline_.has_passed(now_) || now_ >= look_next_) return Next::kLook;
  const bool yields = now_ - since_ < yields_for_ && !group_.contention().is_likely(now_);
  return yields ? Next::kYield : Next::kSleep;
}

// Mostly each of several awaited ranks has to come, so it is enough to sleep on one bell; and as
// each waiter takes another one, a rank that comes does not wake all.
void Backoff::sleep(const WaitInfo& blocked) {
  const std::vector<int>& peers = blocked.peers;
  const auto is_local = [&](int peer) { return group_.is_local(peer); };
  const auto part_of_wait = [&](int part) {
    const auto found = std::chrono::duration_cast<microseconds>(now_ - since_) / part;
    return group_.contention().is_likely(now_) ? std::max(found, Contention::kSleep) : found;
  };
  if (group_.remote_hosts() != nullptr && !blocked.in_memory) {
    const int part = std::ranges::any_of(peers, is_local) ? kPartOfWaitForBoth : kPartOfWait;
    group_.remote_hosts()->sleep(std::min(kLongestSleepOnLinks, part_of_wait(part)));
    return;
  }
  if (std::ranges::find(peers, listens_to_) != peers.end()) {
    listening_->sleep(std::min(kLongestSleep, part_of_wait(kPartOfWait)));
  } else if (!peers.empty()) {
    listens_to_ = peers[group_.rank % peers.size()];
    const int ringer = is_local(listens_to_) ? listens_to_ : group_.own_leader();
    listening_.emplace(group_.segment().state(ringer).progress_bell);
  }
}

void Backoff::look_around(const WaitInfo& blocked) {
  const std::string who = group_.members.name(group_.rank) + " in " + blocked.doing;
  if (group_.broken() && !std::exchange(saw_broken_, true)) return;
  group_.check(blocked.doing);
  try {
    check_interrupt();
  } catch (...) {
    group_.fail(ErrorKind::kClosed, after(who, deadline_) +
                                        " was interrupted by a signal, waiting for " +
                                        group_.members.names(blocked.peers));
    throw;
  }
  if (gone_peer_ && std::ranges::find(blocked.peers, *gone_peer_) == blocked.peers.end()) {
    gone_peer_.reset();
    gone_.clear();
  }
  if (!gone_.empty()) {
    throw group_.fail(ErrorKind::kPeerDied, after(who, deadline_) + ": " + gone_);
  }
  if (overdue_) {
    std::string text =
        timed_out(who, deadline_) + ", waiting for " + group_.members.names(blocked.peers) + ":";
    for (std::size_t i = 0; i < blocked.peers.size(); ++i) {
      text += (i == 0 ? " " : "; ") + group_.describe_peer(blocked.peers[i]);
    }
    throw group_.fail(ErrorKind::kTimeout, text);
  }

  const Clock::time_point now = Clock::now();
  overdue_ = deadline_.has_passed(now);
  look_next_ = now + kLookEvery;
  if (!blocked.peers.empty()) {
    is_published_ = true;
    publish(blocked.peers.front());
  }
  look_at_leader();
  if (!gone_.empty()) return;
  // Not at all peers if there are many: the first rank that finds out breaks the group for all, and
  // every waiting rank begins with another peer.
  const std::size_t looks = std::min(blocked.peers.size(), kPeersPerLook);
  for (std::size_t i = 0; i < looks; ++i) {
    const int peer = blocked.peers[(group_.rank + looked_at_++) % blocked.peers.size()];
    std::string how;
    if (group_.gone(peer, &how) || group_.has_unmade(peer, &how)) {
      gone_ = will_not_answer(group_.members.name(peer), how);
      gone_peer_ = peer;
      return;
    }
  }
}

// Nothing more comes from other hosts when the leader of this one has died. It may leave when it is
// done, before others are.
void Backoff::look_at_leader() {
  if (group_.remote_hosts() == nullptr) return;
  const int leader = group_.own_leader();
  if (leader == group_.rank) return;
  std::string how;
  if (group_.segment().state(leader).liveness.closed.load() == Closed::kNo &&
      group_.gone(leader, &how)) {
    gone_ = will_not_answer(group_.members.name(leader), how);
  }
}

}  // namespace ringcomm::shm
