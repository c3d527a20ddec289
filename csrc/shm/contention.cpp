#include "shm/contention.h"

#include <sched.h>

#include <algorithm>

namespace ringcomm::shm {
namespace {

// More than what a peer computes between two yields, as a rule, and less than a time slice.
constexpr std::chrono::milliseconds kTimeSlice{1};
// A wrong guess costs little by the shortest while, a right one one time slice in the longest.
constexpr std::chrono::nanoseconds kShortest = std::chrono::milliseconds(50);
constexpr std::chrono::nanoseconds kLongest = std::chrono::seconds(1);

}  // namespace

void Contention::yield(Clock::time_point now) {
  sched_yield();
  record_yield(now, Clock::now());
}

void Contention::record_yield(Clock::time_point began, Clock::time_point ended) {
  if (ended - began < kTimeSlice) return;
  const std::int64_t lasted = lasted_.load(std::memory_order_relaxed);
  const std::int64_t since =
      began.time_since_epoch().count() - until_.load(std::memory_order_relaxed);
  const std::int64_t next =
      since < lasted ? std::min(2 * lasted, kLongest.count()) : kShortest.count();
  lasted_.store(next, std::memory_order_relaxed);
  until_.store(ended.time_since_epoch().count() + next, std::memory_order_relaxed);
}

}  // namespace ringcomm::shm
