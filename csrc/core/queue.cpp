#include "core/queue.h"

#include <iterator>
#include <utility>

namespace ringcomm {

void Queue::submit(Operation operation) {
  State& state = *state_;
  std::list<Entry> added;
  added.emplace_back(std::move(operation), Levels(1));
  std::lock_guard lock(state.mutex);
  const auto last = std::prev(state.levels.end());
  auto level = last;
  while (level != state.levels.begin() && !state.is_callback(*level)) --level;
  // Otherwise the thread that has the turn, or runs a callback, sees to it afterwards.
  if (level == last && !state.is_taken()) state.provide_thread();
  level->operations.splice(level->operations.end(), added);
  state.turn.fetch_or(kMore);
  state.call_if_needed();
}

void Queue::provide_thread() {
  std::lock_guard lock(state_->mutex);
  state_->provide_thread();
}

void Queue::hand_over(Operation operation) {
  State& state = *state_;
  std::list<Entry> added;
  added.emplace_back(std::move(operation), Levels(1));
  {
    std::lock_guard lock(state.mutex);
    std::list<Entry>& queued = state.levels.back().operations;
    queued.splice(queued.begin(), added);
    state.turn.fetch_or(kMore);
  }
  leave();
}

bool Queue::try_enter() {
  State& state = *state_;
  unsigned turn = 0;
  if (state.turn.compare_exchange_strong(turn, kTaken)) return true;
  if (turn == kTaken) return false;
  std::lock_guard lock(state.mutex);
  const Level& last = state.levels.back();
  if (state.is_taken() || !last.operations.empty()) return false;
  if (state.levels.size() > 1 && !state.is_callback(last)) return false;
  return (state.turn.fetch_or(kTaken) & kTaken) == 0;
}

void Queue::leave() {
  unsigned turn = kTaken;
  if (state_->turn.compare_exchange_strong(turn, 0)) return;
  const std::shared_ptr<State> state = state_;  // what runs here may destroy the queue
  std::unique_lock lock(state->mutex);
  state->turn.fetch_and(~kTaken);
  state->note_if_idle();
  state->have_it_run(lock);
}

bool Queue::is_idle() { return state_->turn == 0; }

bool Queue::help() {
  const std::shared_ptr<State> state = state_;  // completing may destroy the queue
  std::unique_lock lock(state->mutex);
  if (state->is_taken()) return false;
  const auto level = state->level_to_run();
  if (level == state->levels.end()) return false;
  state->run_front(level, lock);
  state->have_it_run(lock);
  return true;
}

void Queue::State::have_it_run(std::unique_lock<std::mutex>& lock) {
  while (!call_if_needed()) run_one(lock);
}

// The innermost level, or, for a callback that has nothing of its own left to run, one further out.
Queue::Levels::iterator Queue::State::level_to_run() {
  for (auto level = levels.end(); level != levels.begin();) {
    --level;
    if (!level->operations.empty()) return level;
    if (!is_callback(*level)) break;
  }
  return levels.end();
}

void Queue::State::note_if_idle() {
  if (!is_taken() && levels.size() == 1 && empty()) turn = 0;
}

void Queue::State::run_front(Levels::iterator from, std::unique_lock<std::mutex>& lock) {
  std::list<Entry> taken;
  taken.splice(taken.end(), from->operations, from->operations.begin());
  auto& [operation, its_level] = taken.front();
  turn.fetch_or(kTaken);
  lock.unlock();
  operation.run();
  lock.lock();
  turn.fetch_and(~kTaken);
  const auto level = its_level.begin();
  level->thread = std::this_thread::get_id();
  levels.splice(levels.end(), its_level);
  lock.unlock();
  operation.complete();
  lock.lock();
  // What the callbacks have not waited for is still before all that is queued behind.
  std::list<Entry>& outer = std::prev(level)->operations;
  outer.splice(outer.begin(), level->operations);
  levels.erase(level);
  note_if_idle();
  lock.unlock();
  // Without the lock: it may hold the last reference to the queue.
  operation.run = operation.complete = nullptr;
  operation.held.reset();
  lock.lock();
}

}  // namespace ringcomm
