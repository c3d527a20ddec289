// Looks after what has been enqueued on a device, from a thread of its own: nothing on a device
// notices that a peer is late, dead, or does something else.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "core/call.h"
#include "core/deadline.h"
#include "core/device_board.h"
#include "core/group.h"
#include "gpu/nccl/connections.h"
#include "gpu/nccl/event_pool.h"

namespace ringcomm::nccl {

// Added before it is enqueued, since that may wait, too.
struct Pending {
  std::variant<Call, PeerMessage> operation;
  Deadline deadline;
  std::shared_ptr<EventHandle> end;  // recorded behind the operation
};

class Watchdog {
 public:
  // look_around is called all the time, on the watchdog's thread with `device` as the current one,
  // and throws what it finds wrong. on_failure is called there once, with what was found and
  // whether anything was under way; nothing is looked after any more then. may_replay: whether
  // graphs exist that may wait for any peer.
  using OnFailure = std::function<void(const Error&, bool under_way)>;
  Watchdog(Group& group, int device, std::function<void()> look_around,
           std::function<bool()> may_replay, OnFailure on_failure);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Pending pending);
  // Those were not enqueued.
  void forget_unrecorded();

  // Whether all that was added is done, by then.
  bool drain(const Deadline& deadline);

 private:
  void run();
  void fail(std::unique_lock<std::mutex>& lock, const Error& error);
  // Forgets what is done; throws what is wrong with the rest.
  void look();
  bool is_done(const Pending& pending);
  void check_deadline(const Pending& pending);
  void check_agreement(const Pending& pending);
  void check_peers(const Pending& pending);
  void check_replays();
  void check_not_gone(int peer, const std::string& doing);
  std::string describe(const Pending& pending);
  std::string describe_awaited(const Pending& pending);

  Group& group_;
  DeviceBoard& board_;
  const int device_;
  const std::function<void()> look_around_;
  const std::function<bool()> may_replay_;
  const OnFailure on_failure_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable drained_;
  std::vector<Pending> pending_;  // in the order they were added
  bool draining_ = false;
  bool failed_ = false;
  bool stop_ = false;
  // Since when a peer that is gone has been waited for: the end of its part may be on its way.
  Clock::time_point missed_since_{};
  std::thread thread_;
};

}  // namespace ringcomm::nccl
