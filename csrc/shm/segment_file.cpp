// How a rank makes the file of its host, or maps that of another.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <tuple>
#include <utility>

#include "setup/record.h"
#include "shm/group_setup.h"
#include "shm/segment.h"

namespace ringcomm::shm {
namespace {

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

Segment::Segment(Store& store, const GroupConfig& config)
    : rank_(config.rank),
      decline_(config.decline),
      geometry_(config.world_size),
      usage_(describe_rank(config)),
      faulted_in_(config.world_size) {
  try {
    GroupSetup meeting(*this, store, config);
    placement_ = meeting.run();
    inter_host_ = meeting.inter_host();
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

}  // namespace ringcomm::shm
