// How long a rank's collectives have taken so far: in its state, where programs outside read it.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

namespace ringcomm::shm {

// The rank itself alone adds to it.
struct Durations {
  // The first bucket counts what took up to 1 us, each next one what took up to 4 x as long, and
  // the last one all that took longer.
  static constexpr int kBuckets = 14;

  std::atomic<std::uint64_t> counts[kBuckets];
  std::atomic<std::uint64_t> nanoseconds;  // altogether

  static int bucket(std::chrono::nanoseconds duration) {
    const auto microseconds = static_cast<std::uint64_t>((duration.count() + 999) / 1000);
    if (microseconds <= 1) return 0;
    return std::min((static_cast<int>(std::bit_width(microseconds - 1)) + 1) / 2, kBuckets - 1);
  }

  void add(std::chrono::nanoseconds duration) {
    duration = std::max(duration, std::chrono::nanoseconds{0});
    increase(counts[bucket(duration)], 1);
    increase(nanoseconds, static_cast<std::uint64_t>(duration.count()));
  }

 private:
  static void increase(std::atomic<std::uint64_t>& value, std::uint64_t by) {
    value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
};

// Those of one collective, without the calls that ended in an error.
struct CollectiveTimes {
  Durations waited;       // for the ranks that had not called it yet; one for each call
  Durations transferred;  // from then on, in calls whose data did not travel with the announcement
};

}  // namespace ringcomm::shm
