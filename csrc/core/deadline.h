// How long an operation may take.
#pragma once

#include <chrono>

namespace ringcomm {

using Clock = std::chrono::steady_clock;

// The absolute end of an operation's patience.
struct Deadline {
  Clock::time_point start;
  std::chrono::milliseconds timeout;

  // At most a hundred years, which nanoseconds can count.
  static Deadline in(std::chrono::milliseconds timeout) {
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
    return {Clock::now(), timeout < kLongest ? timeout : kLongest};
  }
  double waited() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

}  // namespace ringcomm
