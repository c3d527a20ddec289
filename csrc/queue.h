// Runs a communicator's collectives in the order they were submitted, one at a time.
//
// Whoever is free carries them out: a caller that finds the queue idle runs its own operation on
// the spot; a caller that waits for a queued one runs what is ahead of it; a worker thread runs
// what nobody waits for.
//
// Completing an operation may run a user's callbacks, which may wait for later operations. So an
// operation is completed after its turn has been given up, and if every worker is busy completing,
// another is started: there is always a thread to take the next turn.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ringcomm {

class Queue {
 public:
  struct Operation {
    std::function<void()> run;       // in turn; must not throw
    std::function<void()> complete;  // after the turn; must not throw
  };

  Queue() = default;
  // Runs what is still queued, then ends the workers.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void submit(Operation operation);

  // Takes the turn if nothing is queued or running; the caller must then call leave().
  bool try_enter();
  void leave();

  // Runs the operation whose turn it is, if it is not running yet. False: nothing to do here.
  bool help();

 private:
  // Both are called, and return, with the lock held.
  void run_front(std::unique_lock<std::mutex>& lock);
  void call_worker();

  void work();

  std::mutex mutex_;
  std::condition_variable turn_;
  std::deque<Operation> operations_;
  std::vector<std::thread> workers_;
  int idle_workers_ = 0;
  bool taken_ = false;
  bool stop_ = false;
};

}  // namespace ringcomm
