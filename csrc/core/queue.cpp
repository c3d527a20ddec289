#include "core/queue.h"

#include <iterator>
#include <utility>

namespace ringcomm {

void Queue::submit(Operation operation) {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  auto level = std::prev(state.levels.end());
  while (level != state.levels.begin() && !state.is_callback(*level)) --level;
  level->operations.push_back(std::move(operation));
  state.turn.fetch_or(kMore);
  state.call_if_needed();
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
  std::lock_guard lock(state_->mutex);
  state_->turn.fetch_and(~kTaken);
  state_->note_if_idle();
  state_->call_if_needed();
}

bool Queue::is_idle() { return state_->turn == 0; }

bool Queue::help() {
  const std::shared_ptr<State> state = state_;  // completing may destroy the queue
  std::unique_lock lock(state->mutex);
  if (state->is_taken()) return false;
  const auto level = state->level_to_run();
  if (level == state->levels.end()) return false;
  state->run_front(level, lock);
  state->call_if_needed();
  return true;
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
  Operation operation = std::move(from->operations.front());
  from->operations.pop_front();
  turn.fetch_or(kTaken);
  lock.unlock();
  operation.run();
  lock.lock();
  turn.fetch_and(~kTaken);
  const auto level = levels.insert(levels.end(), Level{std::this_thread::get_id(), {}});
  lock.unlock();
  operation.complete();
  lock.lock();
  // What the callbacks have not waited for is still before all that is queued behind.
  std::deque<Operation>& outer = std::prev(level)->operations;
  outer.insert(outer.begin(), std::make_move_iterator(level->operations.begin()),
               std::make_move_iterator(level->operations.end()));
  levels.erase(level);
  note_if_idle();
  lock.unlock();
  // Without the lock: it may hold the last reference to the queue.
  operation.run = operation.complete = nullptr;
  operation.held.reset();
  lock.lock();
}

}  // namespace ringcomm
