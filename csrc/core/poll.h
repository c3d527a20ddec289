// Waiting by polling: a look, a sleep, a look, a longer sleep. For what need not be seen at once:
// making and leaving groups, and what libraries do in the background. shm/backoff.h waits for data.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/deadline.h"

namespace ringcomm {

// How often the host looks at what a device or a library does.
inline constexpr std::chrono::milliseconds kPollEvery{1};

class Poll {
 public:
  // Each sleep is twice as long as the one before it, up to the longest.
  Poll(std::chrono::microseconds shortest, std::chrono::microseconds longest)
      : shortest_(shortest), longest_(longest), next_(shortest) {}
  explicit Poll(std::chrono::microseconds always) : Poll(always, always) {}

  void sleep() { std::this_thread::sleep_for(next()); }
  // How long the next sleep is, for a caller that does something else meanwhile.
  std::chrono::microseconds next() { return std::exchange(next_, std::min(2 * next_, longest_)); }
  // Something has come, so more may follow soon.
  void restart() { next_ = shortest_; }

  // Whether it is time to look at processes and signals, which takes system calls: after the first
  // millisecond, and then every kLookEvery.
  bool looks_around() {
    const Clock::time_point now = Clock::now();
    if (now < look_next_) return false;
    look_next_ = now + kLookEvery;
    return true;
  }

 private:
  const std::chrono::microseconds shortest_, longest_;
  std::chrono::microseconds next_;
  Clock::time_point look_next_ = Clock::now() + std::chrono::milliseconds(1);
};

// True as soon as done() is; false if it is not within that time.
template <typename Done>
bool poll_for(Clock::duration longest, Poll poll, Done&& done) {
  for (const Clock::time_point start = Clock::now(); !done(); poll.sleep()) {
    if (Clock::now() - start > longest) return false;
  }
  return true;
}

}  // namespace ringcomm
