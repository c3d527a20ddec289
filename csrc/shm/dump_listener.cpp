#include "shm/dump_listener.h"

#include <string>
#include <utility>

#include "core/thread.h"
#include "shm/doorbell.h"

namespace ringcomm::shm {
namespace {

void wake_dump_listeners(Group& group) {
  for (const int rank : group.placement().ranks_on(group.host())) {
    wake(group.segment().state(rank).dump.wakeups);
  }
}

// Whether the rank may still write the record that was asked for.
bool may_dump(Group& group, int rank, std::uint32_t request) {
  const RankState& state = group.segment().state(rank);
  if (state.dump.listens.load(std::memory_order_acquire) == 0) return false;
  if (state.dump.answered.load(std::memory_order_acquire) >= request) return false;
  std::string how;
  if (group.gone(rank, &how)) return false;
  return !group.is_local(rank) || !state.process.is_stopped();
}

}  // namespace

DumpListener::DumpListener(Group& group, std::function<void()> write)
    : group_(group), own_(group.segment().state(group.rank)), write_(std::move(write)) {
  const SignalsBlocked blocked;  // signals are for the program's own threads
  thread_ = start_thread([this] { run(); });
  own_.dump.listens.store(1, std::memory_order_release);
}

void DumpListener::leave() {
  if (!thread_.joinable()) return;
  own_.dump.listens.store(0, std::memory_order_release);
  leaves_.store(true, std::memory_order_relaxed);
  wake(own_.dump.wakeups);
  thread_.join();
}

// What changes after the look at the futex ends the sleep at once.
void DumpListener::run() {
  for (;;) {
    const std::uint32_t wakeups = own_.dump.wakeups.load(std::memory_order_acquire);
    if (leaves_.load(std::memory_order_relaxed)) return;
    const std::uint32_t request =
        group_.segment().header().dump_request.load(std::memory_order_acquire);
    if (request == own_.dump.answered.load(std::memory_order_relaxed)) {
      sleep_on(own_.dump.wakeups, wakeups);
      continue;
    }
    write_();
    own_.dump.answered.store(request, std::memory_order_release);
  }
}

void Group::answer_dump_requests(std::function<void()> write) {
  // A group works without it, too.
  error_of([&] { dump_listener_ = std::make_unique<DumpListener>(*this, std::move(write)); });
}

std::uint32_t Group::request_dumps() {
  const std::uint32_t request =
      segment_.header().dump_request.fetch_add(1, std::memory_order_acq_rel) + 1;
  wake_dump_listeners(*this);
  return request;
}

bool Group::has_dumps(std::uint32_t request) {
  for (int peer = 0; peer < world_size; ++peer) {
    if (peer != rank && may_dump(*this, peer, request)) return false;
  }
  return true;
}

void Group::adopt_dump_request(std::uint32_t request) {
  std::atomic<std::uint32_t>& known = segment_.header().dump_request;
  std::uint32_t before = known.load(std::memory_order_relaxed);
  while (before < request &&
         !known.compare_exchange_weak(before, request, std::memory_order_acq_rel)) {
  }
  if (before < request) wake_dump_listeners(*this);
}

}  // namespace ringcomm::shm
