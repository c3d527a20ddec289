#include "shm/liveness.h"

#include <algorithm>

#include "core/status.h"
#include "shm/group.h"

namespace ringcomm::shm {
namespace {

// A link to a dead rank fails at once, but the report of its host's leader is worth waiting for;
// and a rank leaves after the death of its leader, which must not look like the cause.
constexpr std::chrono::milliseconds kLeaderFirst{500};
// Grace period after a remote rank leaves: data that it sent earlier may still be in flight. The
// second one is for a rank that is known to have sent everything.
constexpr std::chrono::milliseconds kOvertakes{500};
constexpr std::chrono::milliseconds kOvertakesForSure = kFirstHeartbeatTimeout;

}  // namespace

RankState& Liveness::state(int rank) { return group_.segment().state(rank); }

void Liveness::mark_alive(int leader, Clock::time_point when) {
  state(leader).liveness.heard.store(when.time_since_epoch().count(), std::memory_order_release);
}

void Liveness::mark_dead(int leader) {
  std::int64_t not_lost = 0;
  state(leader).liveness.lost.compare_exchange_strong(not_lost,
                                                      Clock::now().time_since_epoch().count());
}

void Liveness::mark_suspended(int leader, Clock::duration silence) {
  state(leader).liveness.heard.fetch_add(std::chrono::nanoseconds(silence).count(),
                                         std::memory_order_release);
}

bool Liveness::gone(int peer, std::string* how) {
  RankState& of_peer = state(peer);
  const Closed closed = of_peer.liveness.closed.load(std::memory_order_acquire);
  if (closed != Closed::kNo) {
    if (closed == Closed::kLeft && !group_.is_local(peer)) {
      // A rank that has completed what this rank is still in has sent its part of that.
      const bool is_sure = of_peer.completed.load() > state(group_.rank).completed.load();
      const auto patience = is_sure ? kOvertakesForSure : kOvertakes;
      if (Clock::now() - first_seen(left_, peer) < patience) return false;
    }
    *how = "it has closed the group";
    return true;
  }
  std::string ended = group_.is_local(peer) ? group_.segment().how_ended(peer) : "";
  if (ended.empty() && of_peer.liveness.ended.load(std::memory_order_acquire) != 0) {
    ended = "its process " + std::to_string(of_peer.process.pid) + " has ended";
  }
  if (!ended.empty()) {
    *how = ended + " (on host " + host_name_of(peer) + ")";
    return true;
  }
  return !group_.is_local(peer) && gone_elsewhere(peer, how);
}

std::string Liveness::host_name_of(int peer) {
  const std::string name = state(peer).host.str();
  return name.empty() ? "#" + std::to_string(group_.placement().host_of[peer]) : name;
}

// Whether a rank of another host is gone, if its leader reports nothing about it.
bool Liveness::gone_elsewhere(int peer, std::string* how) {
  const int its_host = group_.placement().host_of[peer];
  const int leader = group_.placement().leader_of(its_host);
  const bool has_left = state(leader).liveness.closed.load() != Closed::kNo;
  for (const int rank : {peer, leader}) {
    const Loss loss = loss_of(rank);
    if (loss.why.empty()) continue;
    // The report that it has left comes first, and then its connection goes.
    const auto patience = (rank != leader ? 2 : has_left ? 4 : 1) * kLeaderFirst;
    // Measured by the clock of the heartbeat, which has to have listened; and, while the rank's
    // leader sends, by that of its messages, for it has to have had the time to report what became
    // of the rank.
    Clock::time_point listened = heard_at(group_.own_leader());
    if (rank != leader && !has_left) listened = std::min(listened, heard_at(leader));
    if (listened - loss.since < patience) continue;
    const bool is_own = rank == peer;
    *how = (is_own ? "" : "because " + group_.members.name(leader) + " will not answer: ") +
           "the connection to it is lost (" + (is_own ? "on host " : "both on host ") +
           host_name_of(peer) + "): " + loss.why;
    return true;
  }
  if (has_left || has_contact(its_host).value_or(true)) return false;
  *how = "nothing has been heard of its host " + host_name_of(peer) + " for " +
         describe_seconds(std::chrono::duration<double>(silent_for(leader)).count());
  return true;
}

// The loss of the connection to a rank of another host: as this rank knows it, or, if it has no
// connection to that host's leader, as the leader of this host does.
Liveness::Loss Liveness::loss_of(int rank) {
  if (std::string why = group_.remote_hosts()->failure(rank); !why.empty()) {
    return {std::move(why), first_seen(lost_, rank)};
  }
  const RankState& of_rank = state(rank);
  const std::int64_t lost = of_rank.liveness.lost.load(std::memory_order_acquire);
  if (lost == 0 || of_rank.liveness.closed.load() != Closed::kNo) return {};
  return {group_.members.name(group_.own_leader()) + " has found out",
          Clock::time_point(std::chrono::nanoseconds(lost))};
}

std::optional<bool> Liveness::has_contact(int host) {
  if (silent_for(group_.placement().leader_of(group_.host())) >= group_.heartbeat_timeout() / 2) {
    return std::nullopt;
  }
  const int leader = group_.placement().leader_of(host);
  const bool has_spoken = state(leader).liveness.has_spoken.load(std::memory_order_acquire) != 0;
  return silent_for(leader) < (has_spoken
                                   ? group_.heartbeat_timeout()
                                   : std::max(group_.heartbeat_timeout(), kFirstHeartbeatTimeout));
}

Clock::time_point Liveness::heard_at(int leader) {
  return Clock::time_point(
      std::chrono::nanoseconds(state(leader).liveness.heard.load(std::memory_order_acquire)));
}

Clock::duration Liveness::silent_for(int leader) { return Clock::now() - heard_at(leader); }

Clock::time_point Liveness::first_seen(FirstSeen& seen, int peer) {
  const std::lock_guard lock(seen_mutex_);
  return seen.try_emplace(peer, Clock::now()).first->second;
}

}  // namespace ringcomm::shm
