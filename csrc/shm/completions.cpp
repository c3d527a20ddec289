#include "shm/completions.h"

#include <algorithm>
#include <utility>

namespace ringcomm::shm {

Completions::~Completions() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const auto self = std::find_if(
      state.threads.begin(), state.threads.end(),
      [](const std::thread& thread) { return thread.get_id() == std::this_thread::get_id(); });
  const int own = self != state.threads.end() ? 1 : 0;
  state.drained.wait(lock, [&] { return state.waiting.empty() && state.busy == own; });
  state.stop = true;
  state.changed.notify_all();
  if (own == 1) self->detach();
  lock.unlock();
  for (std::thread& thread : state.threads) {
    if (thread.joinable()) thread.join();
  }
}

void Completions::run(std::function<void()> completion) {
  std::lock_guard lock(state_->mutex);
  state_->waiting.push_back(std::move(completion));
  state_->call_thread();
}

void Completions::State::call_thread() {
  if (idle > 0) {
    changed.notify_one();
  } else {
    threads.emplace_back([state = shared_from_this()] { state->work(); });
    ++idle;
  }
}

void Completions::State::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return !waiting.empty() || stop; });
    if (waiting.empty()) return;
    --idle;
    ++busy;
    std::function<void()> completion = std::move(waiting.front());
    waiting.pop_front();
    if (!waiting.empty()) call_thread();
    lock.unlock();
    completion();
    completion = nullptr;  // without the lock: it may hold the last reference to its owner
    lock.lock();
    --busy;
    ++idle;
    drained.notify_all();
  }
}

}  // namespace ringcomm::shm
