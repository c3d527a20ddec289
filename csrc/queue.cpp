#include "queue.h"

#include <utility>

namespace ringcomm {

Queue::~Queue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  turn_.notify_all();
  while (help()) {
  }
  std::vector<std::thread> workers;
  {
    std::lock_guard lock(mutex_);
    workers.swap(workers_);
  }
  for (std::thread& worker : workers) worker.join();
}

void Queue::submit(Operation operation) {
  std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
  if (!taken_) call_worker();
}

bool Queue::try_enter() {
  std::lock_guard lock(mutex_);
  if (taken_ || !operations_.empty()) return false;
  taken_ = true;
  return true;
}

void Queue::leave() {
  std::lock_guard lock(mutex_);
  taken_ = false;
  if (!operations_.empty()) call_worker();
}

bool Queue::help() {
  std::unique_lock lock(mutex_);
  if (taken_ || operations_.empty()) return false;
  run_front(lock);
  return true;
}

void Queue::run_front(std::unique_lock<std::mutex>& lock) {
  const Operation operation = std::move(operations_.front());
  operations_.pop_front();
  taken_ = true;
  lock.unlock();
  operation.run();
  lock.lock();
  taken_ = false;
  if (!operations_.empty()) call_worker();
  lock.unlock();
  operation.complete();
  lock.lock();
}

void Queue::call_worker() {
  if (idle_workers_ > 0) {
    turn_.notify_one();
  } else if (!stop_) {
    workers_.emplace_back([this] { work(); });
  }
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_workers_;
    turn_.wait(lock, [&] { return (!taken_ && !operations_.empty()) || stop_; });
    --idle_workers_;
    if (!taken_ && !operations_.empty()) {
      run_front(lock);
    } else if (stop_ && operations_.empty()) {
      return;
    } else if (stop_) {
      // Another thread has the turn; it comes back for the rest.
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
}

}  // namespace ringcomm
