#include "shm/layout.h"

#include <algorithm>

namespace ringcomm::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kKiB = 1024;

std::size_t round_up(std::size_t nbytes, std::size_t to) { return (nbytes + to - 1) / to * to; }

struct Limit {
  int world_size;
  std::size_t nbytes;
};

// The first limit that the world size does not exceed decides.
template <std::size_t n>
std::size_t by_world_size(int world_size, const Limit (&limits)[n], std::size_t more) {
  for (const Limit& limit : limits) {
    if (world_size <= limit.world_size) return limit.nbytes;
  }
  return more;
}

// An all-to-all announces two counts for each rank.
std::size_t eager_nbytes_of(int n) {
  const std::size_t counts = 2 * static_cast<std::size_t>(n) * sizeof(std::uint64_t);
  return std::max(by_world_size(n, {{2, 64 * kKiB}, {8, 32 * kKiB}, {32, 16 * kKiB}}, 8 * kKiB),
                  round_up(counts, kPage));
}

}  // namespace

const char* name(Area area) {
  static constexpr const char* kNames[kNumAreas] = {"base", "device calls", "announcements",
                                                    "outboxes", "mail boxes"};
  return kNames[static_cast<int>(area)];
}

Geometry::Geometry(int n)
    : world_size(n),
      eager_nbytes(eager_nbytes_of(n)),
      outbox_nbytes(
          by_world_size(n, {{16, 512 * kKiB}, {32, 256 * kKiB}, {64, 128 * kKiB}}, 64 * kKiB)),
      mail_slot_nbytes(by_world_size(
          n, {{4, 64 * kKiB}, {8, 32 * kKiB}, {16, 16 * kKiB}, {32, 8 * kKiB}}, 4 * kKiB)) {
  const std::size_t ranks = static_cast<std::size_t>(n);
  states_at = round_up(sizeof(GroupHeader), kLine);
  mailed_at = states_at + ranks * sizeof(RankState);
  mailed_words = round_up((ranks + 63) / 64 * sizeof(std::uint64_t), kLine) / sizeof(std::uint64_t);
  base_nbytes = round_up(mailed_at + ranks * mailed_words * sizeof(std::uint64_t), kPage);

  nbytes = base_nbytes;
  auto place = [&](std::size_t nbytes_each, std::size_t number) {
    const Region region{nbytes, round_up(nbytes_each, kPage)};
    nbytes += region.stride * number;
    return region;
  };
  device = place(kDeviceCalls * sizeof(DeviceCall) + (ranks + 1) * sizeof(DeviceGreeting), ranks);
  announcements = place(
      2 * (sizeof(Announcement) + eager_nbytes) + kLanesAcrossHosts * sizeof(Progress), ranks);
  outboxes = place(kLanesAcrossHosts * outbox_nbytes, ranks);
  mail =
      place(sizeof(MailEdge) + kMailSlots * (sizeof(MailSlot) + mail_slot_nbytes), ranks * ranks);
}

}  // namespace ringcomm::shm
