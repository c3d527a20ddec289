// Copies that other cores will read: every byte of them, by either kind of stores, and the choice
// between the two.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "check.h"
#include "reduce/publish.h"

using namespace ringcomm;
using Stores = StoreChoice::Stores;

namespace {

constexpr std::size_t kBlock = 16 << 10;
constexpr double kQuick = 1e-10, kSlow = 3e-10;  // seconds per byte

// Writes so many bytes on a machine on which the two take so long. Returns how many
// trials that took.
int write(StoreChoice& choice, std::size_t nbytes, double cached, double streaming,
          std::size_t block = kBlock) {
  int trials = 0;
  for (std::size_t written = 0; written < nbytes; written += block) {
    const StoreChoice::Next next = choice.next(block);
    if (!next.is_trial) continue;
    choice.took(next.stores == Stores::kCached ? cached : streaming);
    ++trials;
  }
  return trials;
}

}  // namespace

// write(to, from, nbytes) for so many bytes, from and to anywhere.
template <typename Write>
void check_every_byte_and_no_other(const std::vector<std::size_t>& sizes, Write&& write) {
  constexpr std::size_t kEdge = 64;
  const std::size_t most = *std::ranges::max_element(sizes);
  std::vector<std::byte> from(most + kEdge), to(most + 3 * kEdge);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 + i / 256);
  for (const std::size_t nbytes : sizes) {
    for (std::size_t offset = 0; offset < kEdge; offset += 5) {
      std::fill(to.begin(), to.end(), std::byte{0});
      write(to.data() + kEdge + offset, from.data() + offset / 2, nbytes);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool is_copied = i >= kEdge + offset && i < kEdge + offset + nbytes;
        CHECK(to[i] == (is_copied ? from[i - kEdge - offset + offset / 2] : std::byte{0}));
      }
    }
  }
}

TEST(streams_write_every_byte_and_no_other) {
  std::vector<std::size_t> sizes(301);
  std::iota(sizes.begin(), sizes.end(), 0);
  check_every_byte_and_no_other(sizes, stream);
}

TEST(messages_are_written_to_the_last_byte_and_no_further) {
  check_every_byte_and_no_other(
      {0, 1, 63, 64, 65, 127, 128, 300, 4096, 4097, 4 * 4096, 4 * 4096 + 1, 5 * 4096 + 7},
      [](std::byte* to, const std::byte* from, std::size_t nbytes) {
        StoreChoice stores;
        publish_message(to, from, nbytes, stores);
      });
}

TEST(published_bytes_arrive_through_trials_and_between) {
  for (const std::size_t nbytes :
       {std::size_t{3}, std::size_t{5000}, kBlock, kBlock + 1, 5 * kBlock}) {
    std::vector<std::byte> from(nbytes), to(nbytes);
    StoreChoice stores;
    for (int turn = 0; turn < 20; ++turn) {
      for (std::size_t i = 0; i < nbytes; ++i) from[i] = static_cast<std::byte>(i * 7 + turn);
      publish(to.data(), from.data(), nbytes, stores);
      CHECK(to == from);
      std::fill(to.begin(), to.end(), std::byte{0});
      publish_message(to.data(), from.data(), nbytes, stores);
      CHECK(to == from);
    }
  }
}

TEST(far_cores_are_written_to_by_streams) {
  StoreChoice choice;
  write(choice, 4 << 20, 4.0 * kQuick, kQuick);
  CHECK(choice.current() == Stores::kStreaming);
  // They come near again.
  write(choice, 32 << 20, kQuick, 0.5 * kQuick);
  CHECK(choice.current() == Stores::kCached);
}

TEST(near_cores_are_written_to_through_the_caches) {
  StoreChoice choice;
  write(choice, 64 << 20, kQuick, kQuick / 3.4);
  CHECK(choice.current() == Stores::kCached);
}

// It is not that buffers take in what streams.
TEST(slow_caches_are_written_around_for_less) {
  StoreChoice choice;
  write(choice, 64 << 20, kSlow, kSlow / 1.4);
  CHECK(choice.current() == Stores::kCached);
  write(choice, 64 << 20, kSlow, kSlow / 1.7);
  CHECK(choice.current() == Stores::kStreaming);
}

// PayloadKind of so many trials, of which every `period`-th finds far cores.
void try_mixed(StoreChoice& choice, int trials, int period, double far) {
  for (int trial = 0; trial < trials; ++trial) {
    while (!choice.next(kBlock).is_trial) {
    }
    choice.took(trial % period == 0 ? far * kQuick : kQuick);
    choice.next(kBlock);
    choice.took(kQuick);
  }
}

TEST(cores_that_are_far_half_of_the_time_are_written_to_by_streams) {
  StoreChoice choice;
  try_mixed(choice, 99, 2, 10.0);
  CHECK(choice.current() == Stores::kStreaming);
}

TEST(a_rank_that_loses_its_core_in_a_trial_has_measured_nothing) {
  StoreChoice choice;
  for (int turn = 0; turn < 10; ++turn) {
    try_mixed(choice, 1, 10, 1000.0);
    CHECK(choice.current() == Stores::kCached);
    try_mixed(choice, 9, 10, 1.0);
  }
}

TEST(a_clock_that_sees_nothing_decides_nothing) {
  StoreChoice choice;
  write(choice, 64 << 20, 0.0, 0.0);
  CHECK(choice.current() == Stores::kCached);
  write(choice, 64 << 20, 4.0 * kQuick, kQuick);
  CHECK(choice.current() == Stores::kStreaming);
}

TEST(trials_are_seldom_where_they_agree) {
  StoreChoice choice;
  CHECK(write(choice, 2 * StoreChoice::kSeldom, kQuick, kQuick) >= 6);  // often in the beginning
  const int trials = write(choice, 16 * StoreChoice::kSeldom, kQuick, kQuick);
  CHECK(trials >= 2 * 14 && trials <= 2 * 17);
}

TEST(small_blocks_are_not_tried) {
  StoreChoice choice;
  CHECK(write(choice, 64 << 20, 4.0 * kQuick, kQuick, StoreChoice::kLeastTried - 1) == 0);
  write(choice, 4 << 20, 4.0 * kQuick, kQuick);
  CHECK(choice.next(StoreChoice::kLeast).stores == Stores::kStreaming);
  CHECK(choice.next(StoreChoice::kLeast - 1).stores == Stores::kCached);
}
