// How durations are counted for programs outside.
#include <chrono>
#include <cstdint>
#include <numeric>

#include "check.h"
#include "shm/layout.h"

namespace {

using namespace std::chrono_literals;
using ringcomm::shm::Durations;

TEST(a_bound_belongs_to_the_bucket_below_it) {
  CHECK_EQ(Durations::bucket(0ns), 0);
  CHECK_EQ(Durations::bucket(1us), 0);
  std::chrono::nanoseconds bound = 1us;
  for (int b = 0; b < Durations::kBuckets - 1; ++b, bound *= 4) {
    CHECK_EQ(Durations::bucket(bound), b);
    CHECK_EQ(Durations::bucket(bound + 1ns), b + 1);
  }
  CHECK_EQ(Durations::bucket(24h * 365 * 100), Durations::kBuckets - 1);
}

TEST(counts_and_sum_grow) {
  Durations durations{};
  durations.add(3us);
  durations.add(2us);
  durations.add(70s);
  durations.add(-5ns);  // a clock that stands still, as two looks at it may be reordered
  CHECK_EQ(durations.counts[0].load(), std::uint64_t{1});
  CHECK_EQ(durations.counts[1].load(), std::uint64_t{2});
  CHECK_EQ(durations.counts[Durations::kBuckets - 1].load(), std::uint64_t{1});
  CHECK_EQ(durations.nanoseconds.load(), std::uint64_t{70'000'005'000});
}

}  // namespace
