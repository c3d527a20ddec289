#include "shm/view.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "core/deadline.h"
#include "core/status.h"
#include "shm/layout.h"
#include "shm/memory_file.h"

namespace ringcomm::shm {
namespace {

// The whole file, as far as it reaches; its owners may be writing.
class Mapping {
 public:
  explicit Mapping(int descriptor) {
    struct stat file {};
    if (fstat(descriptor, &file) != 0) {
      throw Error(ErrorKind::kSystem, describe_failure("fstat", errno));
    }
    nbytes_ = static_cast<std::size_t>(file.st_size);
    void* base = nbytes_ < sizeof(GroupHeader)
                     ? MAP_FAILED
                     : mmap(nullptr, nbytes_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED) throw Error(ErrorKind::kSystem, "it cannot be mapped");
    base_ = static_cast<const std::byte*>(base);
  }
  ~Mapping() { munmap(const_cast<std::byte*>(base_), nbytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::size_t nbytes() const { return nbytes_; }
  template <typename T>
  const T& at(std::size_t offset) const {
    if (offset + sizeof(T) > nbytes_) throw Error(ErrorKind::kSystem, "it is cut short");
    return *reinterpret_cast<const T*>(base_ + offset);
  }

 private:
  const std::byte* base_;
  std::size_t nbytes_;
};

// The call the rank has announced last, if it is not done with it.
std::string doing(const Mapping& memory, const Geometry& geometry, int rank,
                  const RankState& state) {
  const std::uint64_t completed = state.completed.load(std::memory_order_relaxed);
  const bool announces =
      (state.areas.load(std::memory_order_acquire) >> static_cast<int>(Area::kAnnouncements) & 1) !=
      0;
  if (!announces) return "";
  for (const std::uint64_t i : {0, 1}) {
    const auto& announcement = memory.at<Announcement>(geometry.announcement_at(rank, i));
    const std::uint64_t sequence = announcement.sequence.load(std::memory_order_acquire);
    if (sequence != completed + 1) continue;
    Call call;
    std::memcpy(static_cast<void*>(&call), static_cast<const void*>(&announcement.call),
                sizeof(call));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (announcement.sequence.load(std::memory_order_relaxed) != sequence) return "";
    return is_valid(call) ? describe_numbered(call) : "a call that is damaged";
  }
  return "";
}

double seconds_since(const std::atomic<std::int64_t>& begin) {
  const std::chrono::nanoseconds time(begin.load(std::memory_order_relaxed));
  return std::chrono::duration<double>(Clock::now().time_since_epoch() - time).count();
}

bool is_on_another_host(const RankState& state) { return state.process.pid_namespace == 0; }

// Whether the host of a rank on another host has said nothing for so long that it counts as gone.
bool is_silent(const Mapping& memory, const Geometry& geometry, const RankState& state) {
  const std::chrono::milliseconds heartbeat_timeout(memory.at<GroupHeader>(0).heartbeat_timeout);
  for (int r = 0; r < geometry.world_size; ++r) {
    const auto& leader = memory.at<RankState>(geometry.state_at(r));
    if (leader.host_number != state.host_number) continue;
    return seconds_since(leader.liveness.heard) >
           std::chrono::duration<double>(heartbeat_timeout).count();
  }
  return false;
}

Placement placement_of(const Mapping& memory, const Geometry& geometry) {
  std::vector<std::int32_t> hosts;
  for (int r = 0; r < geometry.world_size; ++r) {
    hosts.push_back(memory.at<RankState>(geometry.state_at(r)).host_number);
  }
  return Placement::of(hosts);  // numbers of its own: in damaged memory there may be any
}

std::string state_of(const Mapping& memory, const Geometry& geometry, const RankState& state) {
  if (state.joined.load(std::memory_order_acquire) == 0) return "joining";
  if (state.liveness.ended.load(std::memory_order_acquire) != 0 || !state.process.runs())
    return "ended";
  if (state.liveness.closed.load(std::memory_order_acquire) != Closed::kNo) return "left";
  if (is_on_another_host(state)) return is_silent(memory, geometry, state) ? "silent" : "running";
  return state.process.is_stopped() ? "stopped" : "running";
}

DurationsView view_of(const Durations& durations) {
  DurationsView seen{};
  for (int b = 0; b < Durations::kBuckets; ++b) {
    seen.counts[b] = durations.counts[b].load(std::memory_order_relaxed);
  }
  seen.seconds = 1e-9 * static_cast<double>(durations.nanoseconds.load(std::memory_order_relaxed));
  return seen;
}

RankView view_of(const Mapping& memory, const Geometry& geometry, int rank) {
  const auto& state = memory.at<RankState>(geometry.state_at(rank));
  RankView seen{};
  seen.rank = rank;
  seen.waits_for = -1;
  seen.state = state_of(memory, geometry, state);
  const bool has_joined = seen.state != "joining";
  // For ranks of other hosts these are written when the group is made, and the rest when their
  // hosts report.
  if (has_joined ||
      memory.at<GroupHeader>(0).setup.load(std::memory_order_acquire) == Setup::kDone) {
    seen.global_rank = state.global_rank;
    seen.host = state.host.str();
  }
  if (!has_joined) return seen;
  seen.process = state.process;
  seen.doing = doing(memory, geometry, rank, state);
  seen.completed = state.completed.load(std::memory_order_relaxed);
  seen.enqueued_on_device = state.device.enqueued.load(std::memory_order_relaxed);
  seen.completed_on_device = state.device.completed.load(std::memory_order_relaxed);
  seen.nbytes = state.nbytes.load(std::memory_order_relaxed);
  seen.held_on_device = state.device.held.load(std::memory_order_relaxed);
  seen.held = state.held.load(std::memory_order_relaxed);
  for (int c = 0; c < kNumCollectives; ++c) {
    const CollectiveTimes& times = state.times[c];
    const DurationsView waited = view_of(times.waited);
    if (std::ranges::all_of(waited.counts, [](std::uint64_t count) { return count == 0; }))
      continue;
    seen.times.push_back({static_cast<Collective>(c), waited, view_of(times.transferred)});
  }
  const auto rank_or_none = [&](int peer) {
    return peer >= 0 && peer < geometry.world_size ? peer : -1;
  };
  seen.waits_for = rank_or_none(state.wait.peer.load(std::memory_order_relaxed));
  if (seen.waits_for >= 0) seen.waits = seconds_since(state.wait.since);
  if (state.mail.since.load(std::memory_order_acquire) != 0 && seen.waits_for < 0) {
    seen.doing = state.mail.message.str();
    seen.waits = seconds_since(state.mail.since);
    seen.waits_for = rank_or_none(state.mail.peer.load(std::memory_order_relaxed));
  }
  return seen;
}

std::vector<SizeClass> size_classes_of(const GroupHeader& header) {
  const std::size_t number = std::min<std::size_t>(
      header.num_size_classes.load(std::memory_order_acquire), kMostSizeClasses);
  std::vector<SizeClass> valid;
  for (std::size_t i = 0; i < number; ++i) {
    const SizeClass one = header.size_classes[i];
    const bool is_valid = static_cast<int>(one.collective) < kNumCollectives &&
                          ringcomm::is_valid(one.dtype) && one.path <= Path::kByPlan;
    if (is_valid) valid.push_back(one);
  }
  return valid;
}

}  // namespace

GroupView view(int descriptor) {
  const Mapping memory(descriptor);
  const auto& header = memory.at<GroupHeader>(0);
  const std::int32_t world_size = header.world_size;
  const bool is_ours = header.magic == kMagic && world_size > 0 && world_size < 1 << 20;
  if (!is_ours || header.nbytes != Geometry(world_size).nbytes) {
    throw Error(ErrorKind::kSystem, "it is not the memory of a group of this build of ringcomm");
  }
  Geometry geometry(world_size);
  GroupView group;
  group.name = header.group.str();
  group.complete = header.setup.load(std::memory_order_acquire) == Setup::kDone;
  if (group.complete) {
    const Placement placement = placement_of(memory, geometry);
    group.host_of = placement.host_of;
    group.inter_host = header.inter_host();
    geometry.spread(placement, group.inter_host);
  }
  group.size_classes = size_classes_of(header);
  group.tuned_by = group.size_classes.empty() ? "" : header.tuned_by.str();
  group.reproducible = group.size_classes.empty() ? Reproducible::kOff : header.reproducible;
  if (header.failed.load(std::memory_order_acquire) == 2) group.failure = header.text.str();
  for (int r = 0; r < world_size; ++r) group.ranks.push_back(view_of(memory, geometry, r));
  return group;
}

}  // namespace ringcomm::shm
