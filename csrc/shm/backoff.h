// Waiting for peers: spin, then yield, then sleep; and give up when no awaited peer can come. Where
// other processes compute, no wait yields: shm/contention.h.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "shm/doorbell.h"
#include "shm/group.h"

namespace ringcomm::shm {

// Which ranks are awaited, and in what call. Made only when a wait has become long.
struct WaitInfo {
  std::vector<int> peers;
  std::string doing;  // "all_reduce(count=256, dtype=float32, op=sum) #17"
  // Across hosts: all of it comes to this host's memory without this rank, what other hosts' ranks
  // write by the leader.
  bool in_memory = false;
};

// So many peers are checked in one look: each takes a few system calls.
inline constexpr std::size_t kPeersPerLook = 16;

// One period of waiting:
//
//   Backoff idle(group, deadline);
//   while (!ready()) idle.pause(explain);
//
// explain() returns a WaitInfo. pause() throws Error when the deadline has passed, when an awaited
// peer is gone, or when the group is broken. It does so only in the call after the one that found
// out, so that ready() is asked once more: what a peer did last counts, even if it ended since. A
// peer that has done its part by then is not awaited any more, even if ready() waits for others.
class Backoff {
 public:
  Backoff(Group& group, const Deadline& deadline)
      : group_(group), deadline_(deadline), spins_left_(group.spins()) {}
  ~Backoff() {
    if (is_published_) publish(-1);
  }
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;

  // It does not sleep if something has arrived, which the caller then finds.
  template <typename Explain>
  void pause(Explain&& explain) {
    if (spins_left_ > 0) {
      --spins_left_;
      relax();
    } else {
      switch (next()) {
        case Next::kYield:
          group_.contention().yield(now_);
          break;
        case Next::kSleep:
          sleep(explain());
          break;
        case Next::kLook:
          look_around(explain());
      }
    }
    if (group_.remote_hosts() != nullptr) group_.remote_hosts()->advance();
  }

 private:
  static void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  void publish(int peer) {
    RankState& own = group_.segment().state(group_.rank);
    own.wait.since.store(since_.time_since_epoch().count(), std::memory_order_relaxed);
    own.wait.peer.store(peer, std::memory_order_relaxed);
  }
  // To look whether waiting makes sense.
  enum class Next { kYield, kSleep, kLook };
  Next next();
  void sleep(const WaitInfo& blocked);
  void look_around(const WaitInfo& blocked);
  void look_at_leader();

  Group& group_;
  const Deadline& deadline_;
  int spins_left_;
  Clock::time_point since_{};
  std::chrono::microseconds yields_for_{};
  Clock::time_point now_{};  // as of the last look at the clock
  Clock::time_point look_next_{};
  std::size_t looked_at_ = 0;  // peers, so far
  bool is_published_ = false;
  bool overdue_ = false;
  bool saw_broken_ = false;
  std::string gone_;              // which rank will not answer, and why
  std::optional<int> gone_peer_;  // of those awaited, or none: it is the leader
  int listens_to_ = -1;
  std::optional<DoorbellWaiter> listening_;
};

}  // namespace ringcomm::shm
