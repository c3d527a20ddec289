#include "shm/layout.h"

#include <algorithm>
#include <chrono>

namespace ringcomm::shm {
namespace {

constexpr std::size_t kKiB = 1024;

// What the ranks use in rotation is together about four L2 caches: so much that each core has lost
// what it comes back to, and so little that a cache which they share still has it. With more ranks
// than cores a cache has lost it anyway.
constexpr std::size_t kInRotation = 4096 * kKiB;

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

std::size_t announcements_nbytes_of(std::size_t eager_nbytes) {
  return 2 * (sizeof(Announcement) + eager_nbytes) + kLanesAcrossHosts * sizeof(Progress);
}

}  // namespace

const char* name(Area area) {
  static constexpr const char* kNames[kNumAreas] = {"base",     "device calls", "announcements",
                                                    "payloads", "outboxes",     "mail boxes"};
  return kNames[static_cast<int>(area)];
}

InterHostConfig GroupHeader::inter_host() const {
  return {engine.str(), link, std::chrono::milliseconds(heartbeat_timeout)};
}

Geometry::Geometry(int n)
    : world_size(n),
      eager_nbytes(with_call_nbytes(n)),
      small_nbytes(eager_nbytes),
      payloads_nbytes(by_world_size(n,
                                    {{2, kInRotation / 2},
                                     {4, kInRotation / 4},
                                     {8, kInRotation / 8},
                                     {16, kInRotation / 16}},
                                    0)),
      slots_nbytes(
          by_world_size(n, {{16, 512 * kKiB}, {32, 256 * kKiB}, {64, 128 * kKiB}}, 64 * kKiB)),
      outbox_nbytes(std::max(slots_nbytes, by_world_size(n, {{4, kInRotation / 4}}, 0))),
      mail_slot_nbytes(by_world_size(
          n, {{4, 64 * kKiB}, {8, 32 * kKiB}, {16, 16 * kKiB}, {32, 8 * kKiB}}, 4 * kKiB)) {
  const std::size_t ranks = static_cast<std::size_t>(n);
  states_at = round_up(sizeof(GroupHeader), kLine);
  mailed_at = states_at + ranks * sizeof(RankState);
  mailed_words =
      round_up(divide_up(ranks, 64) * sizeof(std::uint64_t), kLine) / sizeof(std::uint64_t);
  base_nbytes = round_up(mailed_at + ranks * mailed_words * sizeof(std::uint64_t), kPage);

  nbytes = base_nbytes;
  auto place = [&](std::size_t nbytes_each, std::size_t number) {
    const Region region{nbytes, round_up(nbytes_each, kPage)};
    nbytes += region.stride * number;
    return region;
  };
  device = place(DeviceArea::nbytes(world_size), ranks);
  announcements = place(announcements_nbytes_of(std::max(eager_nbytes, kMostBetweenHosts)), ranks);
  payloads = place(payloads_nbytes + eager_nbytes, ranks);  // wherever damaged memory says one is
  outboxes = place(kLanesAcrossHosts * outbox_nbytes, ranks);
  mail =
      place(sizeof(MailEdge) + kMailSlots * (sizeof(MailSlot) + mail_slot_nbytes), ranks * ranks);
}

std::size_t Geometry::announcements_nbytes() const {
  return round_up(announcements_nbytes_of(eager_nbytes), kPage);
}

void Geometry::do_without_rotation() {
  payloads_nbytes = 0;
  outbox_nbytes = slots_nbytes;
}

void Geometry::spread(const Placement& placement, const InterHostConfig& inter_host) {
  if (placement.num_hosts() == 1) return;
  do_without_rotation();  // relays look for payloads behind their announcements
  small_nbytes = with_call_nbytes(placement.host_of, inter_host.link, inter_host.engine);
  eager_nbytes = std::max(eager_nbytes, round_up(small_nbytes, kPage));
}

}  // namespace ringcomm::shm
