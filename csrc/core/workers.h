// A pool of threads that exist while there is work. A derived class decides what the work is, and
// in which order it is done.
//
// A piece of work may block until another piece is done. So a thread is called, or made, whenever
// something can run and no idle thread is there to run it. A few idle threads stay for what comes;
// the others end when they have had nothing to do for a while.
//
// The system may refuse a thread (RLIMIT_NPROC, a container's pids limit). Work that is there
// already is then run by the thread that found it, so that nothing is lost; work that is still to
// be added is refused before anything has changed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ringcomm {

// Held by its owner and by each of its threads, in a std::shared_ptr.
class Workers : public std::enable_shared_from_this<Workers> {
 public:
  static constexpr int kIdleThatStay = 2;
  static constexpr std::chrono::milliseconds kIdleFor{1000};  // before the others end

  virtual ~Workers() = default;

  // Waits until all work is done, and ends the threads. A piece of work may be the last to hold the
  // owner: then the thread that runs it is not waited for.
  void end();

  std::mutex mutex;

  // All that follow are called, and return, with the mutex locked.

  // False: something can run, and no thread can be had for it. The caller then runs it itself.
  bool call_if_needed() noexcept;
  // Before work is added that can run at once: an idle thread, which is made if there is none.
  // Throws Error (kSystem) or std::bad_alloc if it cannot be made; then nothing has changed.
  void provide_thread();

 protected:
  // Whether there is something for a thread to do now, and whether there is nothing left to do.
  virtual bool can_run() const = 0;
  virtual bool empty() const = 0;
  // Does one thing that can run.
  virtual void run_one(std::unique_lock<std::mutex>& lock) = 0;

 private:
  using Threads = std::vector<std::thread>;

  void work();
  Threads::iterator own_thread();

  std::condition_variable changed_;  // for threads: something can run, or it is time to end
  std::condition_variable drained_;  // for end()
  Threads threads_;
  std::thread retired_;  // the last thread that has ended for want of work, to be joined
  int idle_ = 0;         // those that are starting included
  int busy_ = 0;
  bool stop_ = false;
};

// Runs completions of messages, which may block: each on a thread that has none before it.
//
// Before a thread begins a completion it sees to it that another is there for the next one. So as
// long as they are short one or two threads do, and one that waits for another cannot hold it up.
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

}  // namespace ringcomm
