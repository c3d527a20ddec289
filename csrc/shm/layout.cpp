#include "shm/layout.h"

#include <algorithm>
#include <chrono>

#include "plan/network.h"

namespace ringcomm::shm {
namespace {

constexpr std::size_t kKiB = 1024;
// What the ranks of a host announce goes to another in one message, which an engine sends before it
// is received (hosts/ucx_library.cpp) if it is no longer than this.
constexpr std::size_t kMostBetweenHosts = 256 * kKiB;
// Whatever the network is: with gloo, a crossing that is spared is worth more.
constexpr std::size_t kLeastSmall = 256, kLeastSmallByGloo = kKiB;

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

// An all-to-all announces two counts for each rank.
std::size_t eager_nbytes_of(int n) {
  const std::size_t counts = 2 * static_cast<std::size_t>(n) * sizeof(std::uint64_t);
  return std::max(by_world_size(n, {{2, 64 * kKiB}, {8, 32 * kKiB}, {32, 16 * kKiB}}, 8 * kKiB),
                  round_up(counts, kPage));
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
      eager_nbytes(eager_nbytes_of(n)),
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
  mailed_words = round_up((ranks + 63) / 64 * sizeof(std::uint64_t), kLine) / sizeof(std::uint64_t);
  base_nbytes = round_up(mailed_at + ranks * mailed_words * sizeof(std::uint64_t), kPage);

  nbytes = base_nbytes;
  auto place = [&](std::size_t nbytes_each, std::size_t number) {
    const Region region{nbytes, round_up(nbytes_each, kPage)};
    nbytes += region.stride * number;
    return region;
  };
  device = place(kDeviceCalls * sizeof(DeviceCall) + (ranks + 1) * sizeof(DeviceUniqueId), ranks);
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
  const int num_hosts = placement.num_hosts();
  const Link& link = inter_host.link;
  const bool is_known = link.latency > 0 && link.bandwidth > 0;
  if (num_hosts == 1) return;
  do_without_rotation();  // relays look for payloads behind their announcements
  if (!is_known) return;
  std::size_t most_ranks = 0;
  for (int host = 0; host < num_hosts; ++host) {
    most_ranks = std::max(most_ranks, placement.ranks_on(host).size());
  }
  const double pays = one_shot_pays_up_to(num_hosts, static_cast<int>(most_ranks), link);
  const std::size_t most = std::max(eager_nbytes, kMostBetweenHosts / most_ranks / kPage * kPage);
  small_nbytes = pays < static_cast<double>(most) ? static_cast<std::size_t>(pays) : most;
  small_nbytes =
      std::max(small_nbytes, inter_host.engine == "gloo" ? kLeastSmallByGloo : kLeastSmall);
  eager_nbytes = std::max(eager_nbytes, round_up(small_nbytes, kPage));
}

}  // namespace ringcomm::shm
