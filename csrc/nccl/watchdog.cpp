#include "nccl/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ringcomm::nccl {
namespace {

constexpr std::chrono::milliseconds kLookEvery{50};
constexpr std::chrono::seconds kGrace{1};

}  // namespace

Watchdog::Watchdog(shm::Group& group, int device, std::function<void()> check_library,
                   std::function<void(const Error&)> on_failure)
    : group_(group),
      board_(group),
      device_(device),
      check_library_(std::move(check_library)),
      on_failure_(std::move(on_failure)),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::add(Pending pending) {
  {
    std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
  }
  changed_.notify_one();
}

Event Watchdog::new_event() {
  std::lock_guard lock(mutex_);
  if (unused_.empty()) return Event();
  Event event = std::move(unused_.back());
  unused_.pop_back();
  return event;
}

bool Watchdog::drain(const shm::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  return drained_.wait_until(lock, deadline.start + deadline.timeout, [&] {
    return pending_.empty() || failed_;
  }) && !failed_;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  try {
    DeviceGuard guard(device_);
    RelaxedCapture relaxed;
    while (!stop_) {
      if (pending_.empty()) {
        changed_.wait(lock, [&] { return stop_ || !pending_.empty(); });
      } else {
        changed_.wait_for(lock, kLookEvery, [&] { return stop_; });
      }
      if (!stop_) look();
    }
  } catch (const Error& error) {
    failed_ = true;
    lock.unlock();
    drained_.notify_all();
    on_failure_(error);
  }
}

void Watchdog::look() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (!it->end.happened()) {
      ++it;
      continue;
    }
    check_agreement(*it);
    if (it->sequence > 0) board_.complete(it->sequence);
    unused_.push_back(std::move(it->end));
    it = pending_.erase(it);
    missed_since_ = {};
  }
  if (pending_.empty()) {
    drained_.notify_all();
    return;
  }
  const Pending& first = pending_.front();
  if (group_.broken()) group_.check(first.what);
  check_library_();
  check_agreement(first);
  check_peers(first);
  for (const Pending& pending : pending_) check_deadline(pending);
}

void Watchdog::check_deadline(const Pending& pending) {
  if (shm::Clock::now() - pending.deadline.start <= pending.deadline.timeout) return;
  const double timeout = std::chrono::duration<double>(pending.deadline.timeout).count();
  throw Error(ErrorKind::kTimeout,
              "rank " + std::to_string(group_.rank) + " in " + pending.what + " Timed out after " +
                  describe_seconds(pending.deadline.waited()) + " (its timeout is " +
                  describe_seconds(timeout) + "), waiting for " + describe_awaited(pending));
}

std::string Watchdog::describe_awaited(const Pending& pending) {
  if (pending.sequence > 0) return board_.describe_awaited(pending.sequence);
  return group_.describe_peer(pending.peer);
}

// Also of what is done: NCCL may not notice that ranks sent each other something else.
void Watchdog::check_agreement(const Pending& pending) {
  if (pending.sequence == 0) return;
  const std::string mismatch = board_.describe_mismatch(pending.sequence);
  if (mismatch.empty()) return;
  throw Error(ErrorKind::kMismatch, "rank " + std::to_string(group_.rank) + " in " + pending.what +
                                        ": the ranks disagree: " + mismatch);
}

void Watchdog::check_peers(const Pending& pending) {
  for (int peer = 0; peer < group_.world_size; ++peer) {
    const bool involved =
        pending.sequence > 0 ? board_.completed(peer) < pending.sequence : peer == pending.peer;
    std::string how;
    if (peer == group_.rank || !involved || !group_.gone(peer, &how)) continue;
    const shm::Clock::time_point now = shm::Clock::now();
    if (missed_since_ == shm::Clock::time_point{}) missed_since_ = now;
    if (now - missed_since_ < kGrace) return;
    throw Error(ErrorKind::kPeerDied, "rank " + std::to_string(group_.rank) + " in " +
                                          pending.what + " after " +
                                          describe_seconds(pending.deadline.waited()) + ": rank " +
                                          std::to_string(peer) + " will not answer, " + how);
  }
}

}  // namespace ringcomm::nccl
