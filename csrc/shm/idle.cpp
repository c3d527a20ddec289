#include "shm/idle.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace ringcomm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kYieldFor = milliseconds(1);
constexpr microseconds kLongestSleep = milliseconds(1);
constexpr milliseconds kLookEvery{100};  // at processes; costs a few system calls per peer

}  // namespace

bool Idle::yield_or_sleep() {
  const Clock::time_point now = Clock::now();
  if (since_ == Clock::time_point{}) {
    since_ = now;
    look_next_ = now + kYieldFor;
  }
  if (overdue_ || !gone_.empty() || group_.broken()) return true;
  if (now - deadline_.start > deadline_.timeout || now >= look_next_) return true;
  const auto idle = std::chrono::duration_cast<microseconds>(now - since_);
  if (idle < kYieldFor) {
    sched_yield();
  } else {
    // A tenth of the time waited so far: whoever waits longer loses no more of it in proportion.
    std::this_thread::sleep_for(std::min(kLongestSleep, idle / 10));
  }
  return false;
}

void Idle::look_around(const Blocked& blocked) {
  const std::string who = "rank " + std::to_string(group_.rank) + " in " + blocked.doing;
  if (!gone_.empty()) {
    throw group_.fail(ErrorKind::kPeerDied,
                      who + " after " + describe_seconds(deadline_.waited()) + ": " + gone_);
  }
  if (overdue_) {
    std::string text = who + " Timed out after " + describe_seconds(deadline_.waited()) +
                       " (its timeout is " +
                       describe_seconds(std::chrono::duration<double>(deadline_.timeout).count()) +
                       "), waiting for " + describe_ranks(blocked.peers) + ":";
    for (std::size_t i = 0; i < blocked.peers.size(); ++i) {
      text += (i == 0 ? " " : "; ") + group_.describe_peer(blocked.peers[i]);
    }
    throw group_.fail(ErrorKind::kTimeout, text);
  }
  group_.check(blocked.doing);

  const Clock::time_point now = Clock::now();
  overdue_ = now - deadline_.start > deadline_.timeout;
  look_next_ = now + kLookEvery;
  if (!blocked.peers.empty()) {
    told_ = true;
    publish(blocked.peers.front());
  }
  for (int peer : blocked.peers) {
    std::string how;
    if (group_.gone(peer, &how)) {
      gone_ = "rank " + std::to_string(peer) + " will not answer, " + how;
      return;
    }
  }
}

}  // namespace ringcomm::shm
