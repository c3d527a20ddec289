#include "shm/group.h"

#include <sched.h>

#include <algorithm>
#include <vector>

#include "core/thread.h"
#include "shm/dump_listener.h"
#include "shm/layout.h"

namespace ringcomm::shm {
namespace {

// A link to a dead rank fails at once, but the report of its host's leader is worth waiting for;
// and a rank leaves after the death of its leader, which must not look like the cause.
constexpr std::chrono::milliseconds kLeaderFirst{500};
// Grace period after a remote rank leaves: data that it sent earlier may still be in flight. The
// second one is for a rank that is known to have sent everything.
constexpr std::chrono::milliseconds kOvertakes{500};
constexpr std::chrono::milliseconds kOvertakesForSure = kFirstHeartbeatTimeout;

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
    remote_hosts_ = connect_hosts(*this);
  } catch (const NoThread& error) {  // the others have their group
    segment_.give_up(std::make_exception_ptr(error.for_good()));
    throw error.for_good();
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
  std::atomic<Closed>& told = segment_.state(rank).closed;
  if (told.load(std::memory_order_relaxed) != Closed::kLeft) told.store(how);
  ring_all();
  if (how != Closed::kLeft) return;
  if (dump_listener_) dump_listener_->leave();
  if (remote_hosts_) remote_hosts_->leave();
}

void Group::mark_alive(int leader, Clock::time_point when) {
  segment_.state(leader).heard.store(when.time_since_epoch().count(), std::memory_order_release);
}

void Group::mark_dead(int leader) {
  std::int64_t not_lost = 0;
  segment_.state(leader).lost.compare_exchange_strong(not_lost,
                                                      Clock::now().time_since_epoch().count());
}

void Group::mark_suspended(int leader, Clock::duration heartbeat_timeout) {
  segment_.state(leader).heard.fetch_add(std::chrono::nanoseconds(heartbeat_timeout).count(),
                                         std::memory_order_release);
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
    at = state.waits_for.load(std::memory_order_relaxed);
  }
  return text;
}

bool Group::gone(int peer, std::string* how) {
  RankState& state = segment_.state(peer);
  const Closed closed = state.closed.load(std::memory_order_acquire);
  if (closed != Closed::kNo) {
    if (closed == Closed::kLeft && !is_local(peer)) {
      // A rank that has completed what this rank is still in has sent its part of that.
      const bool is_sure = state.completed.load() > segment_.state(rank).completed.load();
      const auto patience = is_sure ? kOvertakesForSure : kOvertakes;
      if (Clock::now() - first_seen(left_, peer) < patience) return false;
    }
    *how = "it has closed the group";
    return true;
  }
  std::string ended = is_local(peer) ? segment_.how_ended(peer) : "";
  if (ended.empty() && state.ended.load(std::memory_order_acquire) != 0) {
    ended = "its process " + std::to_string(state.process.pid) + " has ended";
  }
  if (!ended.empty()) {
    *how = ended + " (on host " + host_name_of(peer) + ")";
    return true;
  }
  return !is_local(peer) && gone_elsewhere(peer, how);
}

std::string Group::host_name_of(int peer) {
  const std::string name = segment_.state(peer).host.str();
  return name.empty() ? "#" + std::to_string(placement().host_of[peer]) : name;
}

// Whether a rank of another host is gone, if its leader reports nothing about it.
bool Group::gone_elsewhere(int peer, std::string* how) {
  const int its_host = placement().host_of[peer];
  const int leader = placement().leader_of(its_host);
  const bool has_left = segment_.state(leader).closed.load() != Closed::kNo;
  for (const int rank : {peer, leader}) {
    const Loss loss = loss_of(rank);
    if (loss.why.empty()) continue;
    // The report that it has left comes first, and then its connection goes.
    const auto patience = (rank != leader ? 2 : has_left ? 4 : 1) * kLeaderFirst;
    // Measured by the clock of the heartbeat, which has to have listened; and, while the rank's
    // leader sends, by that of its messages, for it has to have had the time to report what became
    // of the rank.
    Clock::time_point listened = heard_at(own_leader());
    if (rank != leader && !has_left) listened = std::min(listened, heard_at(leader));
    if (listened - loss.since < patience) continue;
    const bool is_own = rank == peer;
    *how = (is_own ? "" : "because " + members.name(leader) + " will not answer: ") +
           "the connection to it is lost (" + (is_own ? "on host " : "both on host ") +
           host_name_of(peer) + "): " + loss.why;
    return true;
  }
  if (has_left || hears_of(its_host).value_or(true)) return false;
  *how = "nothing has been heard of its host " + host_name_of(peer) + " for " +
         describe_seconds(std::chrono::duration<double>(silent_for(leader)).count());
  return true;
}

// The loss of the connection to a rank of another host: as this rank knows it, or, if it has no
// connection to that host's leader, as the leader of this host does.
Group::Loss Group::loss_of(int rank) {
  if (std::string why = remote_hosts_->failure(rank); !why.empty()) {
    return {std::move(why), first_seen(lost_, rank)};
  }
  const RankState& state = segment_.state(rank);
  const std::int64_t lost = state.lost.load(std::memory_order_acquire);
  if (lost == 0 || state.closed.load() != Closed::kNo) return {};
  return {members.name(own_leader()) + " has found out",
          Clock::time_point(std::chrono::nanoseconds(lost))};
}

std::optional<bool> Group::hears_of(int host) {
  if (silent_for(placement().leader_of(this->host())) >= heartbeat_timeout() / 2) {
    return std::nullopt;
  }
  const int leader = placement().leader_of(host);
  const bool has_spoken = segment_.state(leader).has_spoken.load(std::memory_order_acquire) != 0;
  return silent_for(leader) <
         (has_spoken ? heartbeat_timeout() : std::max(heartbeat_timeout(), kFirstHeartbeatTimeout));
}

Clock::time_point Group::heard_at(int leader) {
  return Clock::time_point(
      std::chrono::nanoseconds(segment_.state(leader).heard.load(std::memory_order_acquire)));
}

Clock::duration Group::silent_for(int leader) { return Clock::now() - heard_at(leader); }

Clock::time_point Group::first_seen(FirstSeen& seen, int peer) {
  const std::lock_guard lock(seen_mutex_);
  return seen.try_emplace(peer, Clock::now()).first->second;
}

}  // namespace ringcomm::shm
