#include "shm/segment.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <tuple>

#include "core/poll.h"

namespace ringcomm::shm {
namespace {

// Linux 5.14; older headers have no names for them.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

// A mail box keeps its first page when its memory is given back.
static_assert(sizeof(MailEdge) <= kPage);

}  // namespace

void Segment::take(Area area, std::size_t offset, std::size_t nbytes) {
  const int code = file_.allocate(offset, nbytes);
  if (code != 0) throw out_of_memory(usage_, area, nbytes, file_, code);
}

bool Segment::release(Area area, std::size_t offset, std::size_t nbytes) {
  if (!file_.release(offset, nbytes)) return false;
  usage_.remove(area, nbytes);
  state(rank_).held.store(usage_.nbytes(), std::memory_order_relaxed);
  return true;
}

const Region& Segment::region_of(Area area) const {
  return area == Area::kDevice          ? geometry_.device
         : area == Area::kAnnouncements ? geometry_.announcements
         : area == Area::kPayloads      ? geometry_.payloads
                                        : geometry_.outboxes;
}

std::size_t Segment::nbytes_of(Area area) const {
  return area == Area::kOutboxes        ? num_lanes() * geometry_.outbox_nbytes
         : area == Area::kAnnouncements ? geometry_.announcements_nbytes()
         : area == Area::kPayloads      ? geometry_.payloads_nbytes
                                        : region_of(area).stride;
}

// Else every page faults when it is first touched, and of what is used in rotation each call
// touches others for long. A kernel before 5.14 does not do it, and nothing else differs.
void Segment::fault_in_first(Area area, int rank) {
  if (!made(rank, area)) return;
  faulted_in_[rank] |= bit(area);
  const std::size_t offset = begin(region_of(area), static_cast<std::size_t>(rank));
  std::ignore = madvise(base_ + offset, nbytes_of(area), kPopulateRead);
}

// The bytes that this rank holds, for the errors of this process and for programs that look at the
// group.
void Segment::count(Area area, std::size_t nbytes) {
  usage_.add(area, nbytes);
  state(rank_).held.store(usage_.nbytes(), std::memory_order_relaxed);
}

void Segment::make(Area area, int rank) {
  const std::lock_guard lock(making_);
  if (made(rank, area)) return;
  const std::size_t nbytes = nbytes_of(area);
  const std::size_t offset = begin(region_of(area), static_cast<std::size_t>(rank));
  take(area, offset, nbytes);
  std::ignore = madvise(base_ + offset, nbytes, kPopulateWrite);  // see fault_in_first
  count(area, nbytes);
  state(rank).areas.fetch_or(bit(area), std::memory_order_release);
}

// A rank that closes the group says so before it closes the file.
bool Segment::has_lost_its_place(int rank) {
  const RankState& state = this->state(rank);
  return rank != rank_ && state.is_locked != 0 && !file_.is_locked(rank) &&
         state.liveness.closed.load(std::memory_order_acquire) == Closed::kNo;
}

bool Segment::has_ended(int rank) {
  return !state(rank).process.runs() || has_lost_its_place(rank);
}

// While a process ends it loses its place first.
std::string Segment::how_ended(int rank) {
  const Process process = state(rank).process;
  const std::string name = "its process " + std::to_string(process.pid);
  if (!process.runs()) return name + " has ended";
  if (!has_lost_its_place(rank)) return "";
  const bool has_ended = poll_for(std::chrono::milliseconds(50), Poll(std::chrono::milliseconds(1)),
                                  [&] { return !process.runs(); });
  return name + (has_ended ? " has ended" : " has ended, or executes another program");
}

bool Segment::record_failure(int reporter, ErrorKind kind, std::string_view text) {
  GroupHeader& shared = header();
  std::uint32_t none = 0;
  if (!shared.failed.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return false;
  shared.kind = kind;
  shared.reporter = reporter;
  shared.text.assign(text);
  shared.failed.store(2, std::memory_order_release);
  return true;
}

void Segment::publish(std::span<const SizeClass> size_classes, std::string_view tuned_by) {
  GroupHeader& shared = header();
  shared.tuned_by.assign(tuned_by);
  size_classes = size_classes.first(std::min<std::size_t>(size_classes.size(), kMostSizeClasses));
  std::ranges::copy(size_classes, shared.size_classes);
  shared.num_size_classes.store(static_cast<std::uint32_t>(size_classes.size()),
                                std::memory_order_release);
}

void Segment::make_mail_box(int from, int to) {
  if (mail_box_made(from, to)) return;
  const std::lock_guard lock(making_);
  if (mail_box_made(from, to)) return;
  take(Area::kMail, mail_box(from, to), geometry_.mail.stride);
  const bool was_made = mail_edge(from, to).posted.load(std::memory_order_relaxed) > 0;
  count(Area::kMail, geometry_.mail.stride - (was_made ? kPage : 0));
  mailed(from, to).fetch_or(std::uint64_t{1} << to % 64, std::memory_order_release);
}

void Segment::give_back() {
  const std::lock_guard lock(making_);
  for (const Area area : {Area::kPayloads, Area::kOutboxes}) {
    const std::size_t offset = begin(region_of(area), static_cast<std::size_t>(rank_));
    if (!made(rank_, area) || !release(area, offset, nbytes_of(area))) continue;
    state(rank_).areas.fetch_and(~bit(area), std::memory_order_release);
  }
  std::ranges::fill(faulted_in_, 0);
}

void Segment::give_back_mail_boxes() {
  const std::lock_guard lock(making_);
  for (int to = 0; to < geometry_.world_size; ++to) {
    if (!mail_box_made(rank_, to)) continue;
    const MailEdge& edge = mail_edge(rank_, to);
    const bool is_empty =
        edge.posted.load(std::memory_order_relaxed) == edge.taken.load(std::memory_order_acquire);
    const std::size_t offset = mail_box(rank_, to) + kPage;
    if (!is_empty || !release(Area::kMail, offset, geometry_.mail.stride - kPage)) continue;
    mailed(rank_, to).fetch_and(~(std::uint64_t{1} << to % 64), std::memory_order_release);
  }
}

}  // namespace ringcomm::shm
