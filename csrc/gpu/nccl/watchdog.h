// Watches what has been enqueued on a device, from a thread of its own: nothing on a device notices
// that a peer is late, dead, or does something else. And the error that the group fails with then.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
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
#include "core/status.h"
#include "gpu/nccl/connections.h"
#include "gpu/nccl/enqueued.h"

namespace ringcomm::nccl {

// The error that a group on a device has failed with. Works refer to it, and may outlive the group.
class Failure {
 public:
  // False if something has failed before: the first cause stays.
  bool set(const Error& error) {
    std::lock_guard lock(mutex_);
    if (error_) return false;
    error_ = std::make_exception_ptr(error);
    failed_.store(true, std::memory_order_release);
    return true;
  }

  // Null as long as all is well.
  std::exception_ptr get() const {
    if (!failed_.load(std::memory_order_acquire)) return nullptr;
    std::lock_guard lock(mutex_);
    return error_;
  }

  void check() const {
    if (const std::exception_ptr error = get()) std::rethrow_exception(error);
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

// Prints the reason and ends the process at once: no destructor may wait for the device, and the
// user's program must not go on.
[[noreturn]] void end_process(const Error& error);

// An operation is added before it is enqueued, because enqueueing may wait, too.
struct Pending {
  std::variant<Call, PeerMessage> operation;
  Deadline deadline;
  std::shared_ptr<EventHandle> end;  // recorded behind the operation
};

class Watchdog {
 public:
  // The watchdog's thread, with `device` as the current one, calls look_around all the time, which
  // throws an error that it finds. It calls on_failure once, with the error and whether anything
  // was under way, and watches nothing afterwards. may_replay: whether graphs exist, which may wait
  // for any peer.
  using OnFailure = std::function<void(const Error&, bool under_way)>;
  Watchdog(Group& group, int device, std::function<void()> look_around,
           std::function<bool()> may_replay, OnFailure on_failure);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(Pending pending);
  // Confirms the end when it has happened. It is behind operations that were added.
  void confirm_later(std::shared_ptr<EventHandle> end);
  // Forgets the operations that were not enqueued.
  void forget_unrecorded();

  // Notes what is done by now, and watches nothing afterwards: what is given up next is not done.
  void abandon() noexcept;

  // Waits until all that was added is done. False: it is not done by the deadline.
  bool drain(const Deadline& deadline);

 private:
  void run();
  void fail(std::unique_lock<std::mutex>& lock, const Error& error);
  // Forgets what is done. Throws an error that it finds in the rest.
  void look();
  void forget_done();
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
  std::vector<std::shared_ptr<EventHandle>> unconfirmed_;
  bool draining_ = false;
  bool failed_ = false;
  bool stop_ = false;
  // When this rank first missed a peer that is gone. The end of that peer's part may still arrive.
  Clock::time_point missed_since_{};
  std::thread thread_;
};

}  // namespace ringcomm::nccl
