// Runs completions of messages, which may block: each on a thread that has none before it.
//
// Before a thread begins a completion it sees to it that another is there for the next one. So as
// long as they are short one or two threads do, and one that waits for another cannot hold it up.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "core/workers.h"

namespace ringcomm::shm {

class Completions {
 public:
  Completions() : state_(std::make_shared<State>()) {}
  // Waits until all have ended, but for one that is the last to hold the object it belongs to.
  ~Completions() { state_->end(); }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Throws Error (kSystem) or std::bad_alloc if no thread can be had for it; then it has not run.
  void run(std::function<void()> completion) {
    std::list<std::function<void()>> added;
    added.push_back(std::move(completion));
    const std::lock_guard lock(state_->mutex);
    state_->provide_thread();
    state_->waiting.splice(state_->waiting.end(), added);
    state_->call_if_needed();
  }

 private:
  struct State final : Workers {
    bool can_run() const override { return !waiting.empty(); }
    bool empty() const override { return waiting.empty(); }
    void run_one(std::unique_lock<std::mutex>& lock) override {
      std::function<void()> completion = std::move(waiting.front());
      waiting.pop_front();
      call_if_needed();
      lock.unlock();
      completion();
      completion = nullptr;  // without the lock: it may hold the last reference to its owner
      lock.lock();
    }

    std::list<std::function<void()>> waiting;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace ringcomm::shm
