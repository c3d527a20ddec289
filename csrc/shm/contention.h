// Whether other processes compute on the cores that this rank waits on.
//
// A thread that yields its core between looks sees within a microsecond what has come. But where
// another process computes, to yield is to lose the core for a time slice, some milliseconds,
// whatever comes meanwhile; a thread that sleeps is woken ahead of such a process. So after a yield
// that took so long waits sleep instead, for a while. Then they yield again, and if that takes a
// time slice again, the next while is twice as long.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/deadline.h"

namespace ringcomm::shm {

// What a rank has seen of that. Any thread.
class Contention {
 public:
  // The shortest sleep in place of a yield. What rings a bell ends it; what does not costs so much.
  static constexpr std::chrono::microseconds kSleep{200};

  bool is_likely(Clock::time_point now) const {
    return now.time_since_epoch().count() < until_.load(std::memory_order_relaxed);
  }
  // Yields this thread's core, at `now`.
  void yield(Clock::time_point now) {
    sched_yield();
    record_yield(now, Clock::now());
  }
  // What yield() has seen.
  void record_yield(Clock::time_point began, Clock::time_point ended) {
    if (ended - began < kTimeSlice) return;
    const std::int64_t lasted = lasted_.load(std::memory_order_relaxed);
    const std::int64_t since =
        began.time_since_epoch().count() - until_.load(std::memory_order_relaxed);
    const std::int64_t next =
        since < lasted ? std::min(2 * lasted, kLongest.count()) : kShortest.count();
    lasted_.store(next, std::memory_order_relaxed);
    until_.store(ended.time_since_epoch().count() + next, std::memory_order_relaxed);
  }

 private:
  // More than what a peer computes between two yields, as a rule, and less than a time slice.
  static constexpr std::chrono::milliseconds kTimeSlice{1};
  // A wrong guess costs little by the shortest while, a right one one time slice in the longest.
  static constexpr std::chrono::nanoseconds kShortest = std::chrono::milliseconds(50);
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::seconds(1);

  std::atomic<std::int64_t> until_{0};   // on Clock, in ns
  std::atomic<std::int64_t> lasted_{0};  // the last while, in ns
};

}  // namespace ringcomm::shm
