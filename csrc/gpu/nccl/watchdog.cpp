#include "gpu/nccl/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "core/thread.h"

namespace ringcomm::nccl {
namespace {

constexpr std::chrono::milliseconds kLookEveryToDrain{1};
constexpr std::chrono::seconds kGrace{1};

}  // namespace

void end_process(const Error& error) {
  const std::string text =
      "ring: " + std::string(error.what()) +
      "\nring: the process ends, because the results of what was under way on its device are lost, "
      "and it would compute on with what is in their place. RINGCOMM_ASYNC_ERRORS=raise lets it go "
      "on, and later calls raise the error.\n";
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) break;
    at += static_cast<std::size_t>(written);
  }
  std::_Exit(EXIT_FAILURE);
}

Watchdog::Watchdog(Group& group, int device, std::function<void()> look_around,
                   std::function<bool()> may_replay, OnFailure on_failure)
    : group_(group),
      board_(group.board()),
      device_(device),
      look_around_(std::move(look_around)),
      may_replay_(std::move(may_replay)),
      on_failure_(std::move(on_failure)),
      thread_(start_thread([this] { run(); })) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::add(Pending pending) {
  std::lock_guard lock(mutex_);
  pending_.push_back(std::move(pending));
}

void Watchdog::confirm_later(std::shared_ptr<EventHandle> end) {
  std::lock_guard lock(mutex_);
  unconfirmed_.push_back(std::move(end));
}

void Watchdog::forget_unrecorded() {
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [](const Pending& pending) { return !pending.end->is_recorded(); });
}

void Watchdog::abandon() noexcept {
  std::lock_guard lock(mutex_);
  if (!failed_) error_of([this] { forget_done(); });
  failed_ = true;
  drained_.notify_all();
}

bool Watchdog::drain(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.notify_all();
  return drained_.wait_until(lock, deadline.start + deadline.timeout, [&] {
    return (pending_.empty() && unconfirmed_.empty()) || failed_;
  }) && !failed_;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  try {
    RINGCOMM_CHECK(cudaSetDevice(device_));
    RelaxedCapture relaxed;
    while (!stop_ && !failed_) {
      changed_.wait_for(lock, draining_ ? kLookEveryToDrain : kLookEvery);
      if (stop_ || failed_) break;
      look();
      lock.unlock();
      look_around_();
      lock.lock();
    }
  } catch (const Error& error) {
    fail(lock, error);
  } catch (const std::exception& error) {  // an error of the allocator or of torch
    fail(lock, Error(ErrorKind::kSystem, error.what()));
  }
}

void Watchdog::fail(std::unique_lock<std::mutex>& lock, const Error& error) {
  if (!lock.owns_lock()) lock.lock();
  failed_ = true;
  // If an operation is still being enqueued, its caller gets the error.
  const auto is_under_way = [](const Pending& pending) { return pending.end->is_recorded(); };
  const bool under_way =
      std::any_of(pending_.begin(), pending_.end(), is_under_way) || may_replay_();
  lock.unlock();
  drained_.notify_all();
  on_failure_(error, under_way);
}

void Watchdog::forget_done() {
  if (std::erase_if(pending_, [this](const Pending& pending) { return is_done(pending); }) > 0) {
    missed_since_ = {};
  }
  std::erase_if(unconfirmed_, [](const std::shared_ptr<EventHandle>& end) {
    if (!end->happened()) return false;
    end->confirm();
    return true;
  });
}

void Watchdog::look() {
  forget_done();
  if (pending_.empty()) {
    drained_.notify_all();
    if (group_.broken()) group_.check("an idle group on device " + std::to_string(device_));
    if (may_replay_()) check_replays();
    return;
  }
  const Pending& first = pending_.front();
  if (group_.broken()) group_.check(describe(first));
  check_agreement(first);
  check_peers(first);
  for (const Pending& pending : pending_) check_deadline(pending);
  if (may_replay_()) check_replays();
}

bool Watchdog::is_done(const Pending& pending) {
  if (!pending.end->happened()) return false;
  check_agreement(pending);
  const Call* call = std::get_if<Call>(&pending.operation);
  if (call != nullptr) board_.complete(call->sequence);
  pending.end->confirm();
  return true;
}

void Watchdog::check_deadline(const Pending& pending) {
  if (!pending.deadline.has_passed()) return;
  const std::string who = group_.members.name(group_.rank) + " in " + describe(pending);
  throw Error(ErrorKind::kTimeout,
              timed_out(who, pending.deadline) + ", waiting for " + describe_awaited(pending));
}

std::string Watchdog::describe(const Pending& pending) {
  const Call* call = std::get_if<Call>(&pending.operation);
  return call != nullptr ? describe_numbered(*call, group_.members)
                         : nccl::describe(std::get<PeerMessage>(pending.operation));
}

std::string Watchdog::describe_awaited(const Pending& pending) {
  const Call* call = std::get_if<Call>(&pending.operation);
  return call != nullptr ? board_.describe_awaited(call->sequence)
                         : group_.describe_peer(std::get<PeerMessage>(pending.operation).peer);
}

// Operations that are done are checked, too: NCCL may not notice that ranks sent each other
// something else.
void Watchdog::check_agreement(const Pending& pending) {
  const Call* call = std::get_if<Call>(&pending.operation);
  if (call == nullptr) return;
  const std::string mismatch = board_.describe_mismatch(call->sequence);
  if (mismatch.empty()) return;
  throw Error(ErrorKind::kMismatch, group_.members.name(group_.rank) + " in " + describe(pending) +
                                        ": the ranks disagree: " + mismatch);
}

void Watchdog::check_peers(const Pending& pending) {
  const Call* call = std::get_if<Call>(&pending.operation);
  for (int peer = 0; peer < group_.world_size; ++peer) {
    const bool involved = call != nullptr ? board_.completed(peer) < call->sequence
                                          : peer == std::get<PeerMessage>(pending.operation).peer;
    if (!involved) continue;
    check_not_gone(peer,
                   describe(pending) + " after " + describe_seconds(pending.deadline.waited()));
  }
}

// A replay waits for its peers as a call does, but it is not announced. A rank that has closed
// without an error takes part in no replay.
void Watchdog::check_replays() {
  for (int peer = 0; peer < group_.world_size; ++peer) {
    if (board_.least_closed({peer}) != DeviceBoard::Closing::kNot) continue;
    check_not_gone(peer, "CUDA graphs with operations of the group");
  }
}

void Watchdog::check_not_gone(int peer, const std::string& doing) {
  std::string how;
  if (peer == group_.rank || !group_.gone(peer, &how)) return;
  const Clock::time_point now = Clock::now();
  if (missed_since_ == Clock::time_point{}) missed_since_ = now;
  if (now - missed_since_ < kGrace) return;
  throw Error(ErrorKind::kPeerDied, group_.members.name(group_.rank) + " in " + doing + ": " +
                                        group_.members.name(peer) + " will not answer, " + how);
}

}  // namespace ringcomm::nccl
