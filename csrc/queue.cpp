#include "queue.h"

#include <algorithm>
#include <utility>

namespace ringcomm {

Queue::~Queue() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const auto self = std::find_if(
      state.workers.begin(), state.workers.end(),
      [](const std::thread& worker) { return worker.get_id() == std::this_thread::get_id(); });
  const int own = self != state.workers.end() ? 1 : 0;
  if (state.can_run()) state.call_worker();
  state.drained.wait(lock, [&] { return state.operations.empty() && state.busy_workers == own; });
  state.stop = true;
  state.changed.notify_all();
  if (own == 1) self->detach();
  lock.unlock();
  for (std::thread& worker : state.workers) {
    if (worker.joinable()) worker.join();
  }
}

void Queue::submit(Operation operation) {
  std::lock_guard lock(state_->mutex);
  state_->operations.push_back(std::move(operation));
  if (!state_->taken) state_->call_worker();
}

bool Queue::try_enter() {
  std::lock_guard lock(state_->mutex);
  if (state_->taken || !state_->operations.empty()) return false;
  state_->taken = true;
  return true;
}

void Queue::leave() {
  std::lock_guard lock(state_->mutex);
  state_->taken = false;
  if (!state_->operations.empty()) state_->call_worker();
}

bool Queue::help() {
  const std::shared_ptr<State> state = state_;  // completing may destroy the queue
  std::unique_lock lock(state->mutex);
  if (!state->can_run()) return false;
  state->run_front(lock);
  return true;
}

void Queue::State::run_front(std::unique_lock<std::mutex>& lock) {
  Operation operation = std::move(operations.front());
  operations.pop_front();
  taken = true;
  lock.unlock();
  operation.run();
  lock.lock();
  taken = false;
  if (!operations.empty()) call_worker();
  lock.unlock();
  operation.complete();
  operation = {};  // without the lock: it may hold the last reference to the queue
  lock.lock();
}

void Queue::State::call_worker() {
  if (idle_workers > 0) {
    changed.notify_one();
  } else {
    workers.emplace_back([state = shared_from_this()] { state->work(); });
  }
}

void Queue::State::work() {
  std::unique_lock lock(mutex);
  while (!stop) {
    if (can_run()) {
      ++busy_workers;
      run_front(lock);
      --busy_workers;
      drained.notify_all();
    } else {
      ++idle_workers;
      changed.wait(lock, [&] { return can_run() || stop; });
      --idle_workers;
    }
  }
}

}  // namespace ringcomm
