#include "core/workers.h"

#include <algorithm>
#include <utility>

#include "core/thread.h"

namespace ringcomm {

Workers::Threads::iterator Workers::own_thread() {
  return std::find_if(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
}

void Workers::end() {
  std::unique_lock lock(mutex);
  const auto self = own_thread();
  const int own = self != threads_.end() ? 1 : 0;
  while (!call_if_needed()) run_one(lock);
  drained_.wait(lock, [&] { return empty() && busy_ == own; });
  stop_ = true;
  changed_.notify_all();
  if (own == 1) self->detach();
  lock.unlock();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  if (retired_.joinable()) retired_.join();
}

bool Workers::call_if_needed() noexcept {
  if (!can_run()) return true;
  try {
    provide_thread();
  } catch (...) {
    return false;
  }
  changed_.notify_one();
  return true;
}

void Workers::provide_thread() {
  if (idle_ > 0) return;
  threads_.reserve(threads_.size() + 1);  // a thread that has started must have its place
  threads_.push_back(start_thread([self = shared_from_this()] { self->work(); }));
  ++idle_;
}

void Workers::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    const bool called = changed_.wait_for(lock, kIdleFor, [&] { return can_run() || stop_; });
    if (called && !can_run()) return;
    if (!called && idle_ > kIdleThatStay) break;
    if (!called) continue;
    --idle_;
    ++busy_;
    run_one(lock);
    --busy_;
    ++idle_;
    drained_.notify_all();
  }
  // Leaves itself to be joined by the next that ends, or by end().
  --idle_;
  const auto self = own_thread();
  std::thread before = std::exchange(retired_, std::move(*self));
  threads_.erase(self);
  lock.unlock();
  if (before.joinable()) before.join();
}

}  // namespace ringcomm
