#include "shm/group.h"

#include <sched.h>

#include <algorithm>
#include <vector>

#include "core/thread.h"
#include "shm/dump_listener.h"
#include "shm/layout.h"

namespace ringcomm::shm {
namespace {

constexpr int kSpins = 20;  // about 1 us; yielding costs little more, and lets a peer run

// Launchers bind each rank to cores of its own, or leave them all to all ranks.
bool outnumber_their_cores(Segment& segment, const std::vector<int>& ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int rank : ranks) CPU_OR(&cores, &cores, &segment.state(rank).cores);
  return static_cast<int>(ranks.size()) > CPU_COUNT(&cores);
}

}  // namespace

Group::Group(Store& store, const GroupConfig& config, const ConnectHosts& connect_hosts)
    : ringcomm::Group(config.rank, config.world_size, config.members),
      segment_(store, config),
      spins_(outnumber_their_cores(segment_, placement().ranks_on(host())) ? 0 : kSpins),
      liveness_(*this),
      board_(*this) {
  for (int peer = 0; peer < world_size; ++peer) {
    if (!is_local(peer)) remote_.push_back(peer);
  }
  if (!remote_.empty()) connect(connect_hosts);
  segment_.set_used();
}

void Group::connect(const ConnectHosts& connect_hosts) {
  if (!connect_hosts) {
    throw Error(ErrorKind::kInvalidArgument, members.name(rank) + " does not share memory with " +
                                                 members.names(remote_) +
                                                 ", and is given no links between hosts");
  }
  try {
    // The others have their group.
    remote_hosts_ = once_for_all([&] { return connect_hosts(*this); });
  } catch (...) {
    segment_.give_up(std::current_exception());
    throw;
  }
}

Group::~Group() = default;

std::vector<int> Group::other_leaders() const {
  std::vector<int> leaders;
  for (int h = 0; h < placement().num_hosts(); ++h) {
    if (h != host()) leaders.push_back(placement().leader_of(h));
  }
  return leaders;
}

void Group::make(Area area) {
  try {
    segment_.make(area);
  } catch (const Error& error) {
    throw fail(error.kind(), error.what());
  }
}

void Group::check(const std::string& doing) {
  if (closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kClosed, doing + ": " + close_reason_);
  }
  if (segment_.header().failed.load(std::memory_order_acquire) == 0) return;
  throw first_failure(doing, "");
}

Error Group::fail(ErrorKind kind, const std::string& text) {
  if (!record_failure(rank, kind, text)) return first_failure("the group", " Meanwhile, " + text);
  return Error(kind, text);
}

void Group::note_unmade() {
  std::int64_t none = 0;
  segment_.state(rank).unmade_since.compare_exchange_strong(
      none, Clock::now().time_since_epoch().count());
}

bool Group::has_unmade(int peer, std::string* how) {
  const std::int64_t since = segment_.state(peer).unmade_since.load(std::memory_order_acquire);
  if (since == 0) return false;
  const Clock::duration waited = Clock::now() - Clock::time_point(std::chrono::nanoseconds(since));
  if (waited < kForAnother) return false;
  *how = "the system made no further thread for its last call, " +
         describe_seconds(std::chrono::duration<double>(waited).count()) +
         " ago, and it has not made that call since";
  return true;
}

void Group::adopt_failure(int reporter, ErrorKind kind, const std::string& text) {
  record_failure(reporter, kind, text);
}

bool Group::record_failure(int reporter, ErrorKind kind, std::string_view text) {
  if (!segment_.record_failure(reporter, kind, text)) return false;
  ring_all();
  return true;
}

void Group::ring_all() {
  for (int r = 0; r < world_size; ++r) segment_.state(r).progress_bell.ring();
}

// What the rank that failed first has recorded, which may be the reason for all that follows.
Error Group::first_failure(const std::string& doing, const std::string& more) {
  const GroupHeader& header = segment_.header();
  const Clock::time_point start = Clock::now();
  while (header.failed.load(std::memory_order_acquire) != 2) {
    if (Clock::now() - start > std::chrono::seconds(1)) {
      return Error(ErrorKind::kPeerDied,
                   doing + ": a rank ended while it was recording why the group failed." + more);
    }
    sched_yield();
  }
  const ErrorKind kind = std::min(read_once(header.kind), ErrorKind::kLibrary);
  return Error(kind, doing + " failed on " + members.name(rank) + ", because the group failed on " +
                         members.name(header.reporter) + ": " + header.text.str() + more);
}

void Group::rename(const std::string& name) {
  members.group = name;
  if (rank == own_leader()) segment_.header().group.assign(name);
}

std::vector<std::string> Group::host_names() {
  std::vector<std::string> names;
  for (int host = 0; host < placement().num_hosts(); ++host) {
    names.push_back(segment_.state(placement().leader_of(host)).host.str());
  }
  return names;
}

std::optional<ErrorKind> Group::failure() {
  const GroupHeader& header = segment_.header();
  if (header.failed.load(std::memory_order_acquire) != 2) return std::nullopt;
  return header.kind;
}

void Group::close(const std::string& reason, Closed how) {
  std::lock_guard lock(close_mutex_);
  if (!closed_.load(std::memory_order_relaxed)) {
    close_reason_ = reason;
    closed_.store(true, std::memory_order_release);
  }
  std::atomic<Closed>& own = segment_.state(rank).liveness.closed;
  if (own.load(std::memory_order_relaxed) != Closed::kLeft) own.store(how);
  ring_all();
  if (how != Closed::kLeft) return;
  if (dump_listener_) dump_listener_->leave();
  if (remote_hosts_) remote_hosts_->leave();
}

std::string Group::describe_peer(int peer) {
  std::string text;
  std::vector<int> seen;
  for (int at = peer;
       at >= 0 && at < world_size && std::find(seen.begin(), seen.end(), at) == seen.end();) {
    RankState& state = segment_.state(at);
    std::string how;
    text += std::string(text.empty() ? "" : ", which waits for ") + members.name(at);
    if (gone(at, &how)) return text + " (" + how + ")";
    text += " (its last complete collective is #" +
            std::to_string(state.completed.load(std::memory_order_relaxed)) + ")";
    seen.push_back(at);
    at = state.wait.peer.load(std::memory_order_relaxed);
  }
  return text;
}

bool Group::gone(int peer, std::string* how) { return liveness_.gone(peer, how); }

}  // namespace ringcomm::shm
