#include "shm/segment.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <tuple>
#include <utility>

#include "core/poll.h"
#include "setup/record.h"
#include "shm/group_setup.h"

namespace ringcomm::shm {
namespace {

// Linux 5.14; older headers have no names for them.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

// A mail box keeps its first page when its memory is given back.
static_assert(sizeof(MailEdge) <= kPage);

std::uint64_t random_cookie() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

// Addresses without memory read as zeros, so that damaged memory which says that they may be
// touched does no harm. Without this they would raise SIGBUS, and nothing else would differ.
void make_hole(int descriptor, std::size_t nbytes) {
  rlimit most{};
  const bool is_allowed = getrlimit(RLIMIT_FSIZE, &most) == 0 && nbytes <= most.rlim_cur;
  if (is_allowed) std::ignore = ftruncate(descriptor, static_cast<off_t>(nbytes));
}

std::string describe_rank(const GroupConfig& config) {
  const std::string& group = config.members.group;
  return "rank " + std::to_string(config.rank) + " of " + std::to_string(config.world_size) +
         (group.empty() ? " in a group without a name" : " in group \"" + group + "\"");
}

}  // namespace

// ---- The file of a host -------------------------------------------------------------------------

Segment::Segment(Store& store, const GroupConfig& config)
    : rank_(config.rank),
      decline_(config.decline),
      geometry_(config.world_size),
      usage_(describe_rank(config)),
      faulted_in_(config.world_size) {
  try {
    const MadeGroup made = make_group(*this, store, config);
    placement_ = made.placement;
    inter_host_ = made.inter_host;
    geometry_.spread(placement_, inter_host_);
    // Containers have 64 MiB of /dev/shm, for all groups.
    if (file_.kind() == File::Kind::kNamed) geometry_.do_without_rotation();
  } catch (const Error&) {
    leave();
    throw;
  } catch (...) {
    give_up(std::current_exception());
    leave();
    throw;
  }
}

Segment::~Segment() {
  if (!is_used_) give_up(make_error(ErrorKind::kSystem, "the rest of its set-up failed"));
  unmap();
}

// In memory for the ranks of this host, in the store for those of other hosts.
void Segment::give_up(const std::exception_ptr& error) noexcept {
  is_used_ = true;
  at_the_end([&] {
    const std::string why = "it could not join the group: " + what_of(error);
    if (base_ != nullptr) record_failure(rank_, ErrorKind::kSystem, why);
    if (decline_ && !name_.empty()) decline_(name_, why);
  });
}

// The file is of the other kind where this one cannot be made.
std::string Segment::open(File::Kind kind, const Members& members, const Participant& self) {
  if (std::optional<File> file = File::make(kind)) file_ = std::move(*file);
  if (file_.descriptor() < 0) file_ = *File::make(File::Kind::kNamed);
  take(Area::kBase, 0, geometry_.base_nbytes);
  make_hole(file_.descriptor(), geometry_.nbytes);
  map();
  GroupHeader& shared = header();
  shared.magic = kMagic;
  shared.cookie = random_cookie();
  shared.nbytes = geometry_.nbytes;
  shared.world_size = geometry_.world_size;
  shared.group.assign(members.group);
  introduce(members, self);
  return file_.address() + "\n" + std::to_string(shared.cookie);
}

void Segment::set_tuned(const std::vector<TunedRule>& rules) {
  std::ranges::copy(rules, header().tuned);
  header().num_tuned = static_cast<std::uint32_t>(rules.size());
}

bool Segment::join(const std::string& address, const Members& members, const Participant& self) {
  const std::size_t line = address.find('\n');
  if (line == std::string::npos) return false;
  std::optional<File> file = File::open(address.substr(0, line));
  if (!file) return false;
  file_ = std::move(*file);
  map();
  std::uint64_t cookie = 0;
  const bool is_one = read_number(std::string_view(address).substr(line + 1), cookie);
  if (!is_one || header().cookie != cookie) {
    leave();
    return false;
  }
  if (header().magic != kMagic || header().nbytes != geometry_.nbytes) {
    throw Error(ErrorKind::kSystem,
                file_.address() +
                    " is not the shared memory of this build of ringcomm: the ranks do not "
                    "run the same build");
  }
  introduce(members, self);
  return true;
}

void Segment::leave() {
  unmap();
  file_ = File();
}

void Segment::map() {
  void* base =
      mmap(nullptr, geometry_.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.descriptor(), 0);
  if (base == MAP_FAILED) {
    throw Error(ErrorKind::kSystem,
                describe_failure(
                    "mmap(" + file_.address() + ", " + std::to_string(geometry_.nbytes) + " bytes)",
                    errno));
  }
  base_ = static_cast<std::byte*>(base);
}

void Segment::unmap() {
  if (base_ != nullptr) munmap(std::exchange(base_, nullptr), geometry_.nbytes);
}

void Segment::introduce(const Members& members, const Participant& self) {
  RankState& own = state(rank_);
  own.process = self.process;
  own.host.assign(self.host);
  if (sched_getaffinity(0, sizeof(own.cores), &own.cores) != 0) CPU_ZERO(&own.cores);
  own.global_rank = members.global(rank_);
  own.is_locked = file_.lock(rank_) ? 1 : 0;
  own.wait.peer.store(-1, std::memory_order_relaxed);
  own.joined.store(1, std::memory_order_release);
}

// ---- The memory of areas ------------------------------------------------------------------------

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

void Segment::publish(std::span<const SizeClass> size_classes, std::string_view tuned_by,
                      Reproducible reproducible) {
  GroupHeader& shared = header();
  shared.reproducible = reproducible;
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
