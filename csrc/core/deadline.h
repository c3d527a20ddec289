// How long an operation may take, how often a wait looks around, and what interrupts it.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace ringcomm {

using Clock = std::chrono::steady_clock;

// How often a wait looks whether its peers' processes run and a signal has come: that takes system
// calls.
inline constexpr std::chrono::milliseconds kLookEvery{100};

// What Clock said at the kernel's last tick, some ms ago at most, for a third of what it costs to
// ask Clock.
inline Clock::time_point rough_now() {
  static_assert(Clock::is_steady);  // as CLOCK_MONOTONIC
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) +
                           std::chrono::nanoseconds(now.tv_nsec));
}

// A hundred years. Clock counts nanoseconds: of three hundred years there are more than it can.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

// What may be added to a time of Clock, or be compared with a difference of two, and be added up.
constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds timeout) {
  return std::clamp(timeout, -kLongestTimeout, kLongestTimeout);
}

// The absolute end of an operation's patience.
struct Deadline {
  Clock::time_point start;
  std::chrono::milliseconds timeout;

  static Deadline in(std::chrono::milliseconds timeout) { return {Clock::now(), bounded(timeout)}; }
  // Begins late by up to a tick of the kernel, and never early: a small collective takes no longer
  // than some dozens of looks at the clock.
  static Deadline roughly_in(std::chrono::milliseconds timeout) {
    static const std::chrono::nanoseconds tick = [] {
      timespec resolution{};
      clock_getres(CLOCK_MONOTONIC_COARSE, &resolution);
      return std::chrono::seconds(resolution.tv_sec) + std::chrono::nanoseconds(resolution.tv_nsec);
    }();
    return {rough_now() + tick, bounded(timeout)};
  }
  bool has_passed(Clock::time_point now = Clock::now()) const { return now - start > timeout; }
  double waited() const {
    return std::chrono::duration<double>(std::max(Clock::now() - start, Clock::duration{})).count();
  }
};

// Every wait calls it now and then, to find out whether its thread is to stop. It returns, or
// throws what the wait is to end with. The program that embeds the library sets it; Python's throws
// after a signal whose handler raises, such as Ctrl-C's.
using CheckInterrupt = void (*)();

inline std::atomic<CheckInterrupt> interrupt_hook{nullptr};

inline void check_interrupt() {
  if (const CheckInterrupt check = interrupt_hook.load(std::memory_order_relaxed)) check();
}

}  // namespace ringcomm
