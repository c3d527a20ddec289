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
#include <memory>
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

  Queue() : state_(std::make_shared<State>()) {}
  // Waits until all that is queued is complete. The last holder of a queue may be one of its own
  // operations: then the worker that destroys it is not waited for.
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
  // Held by the queue and by each of its workers.
  struct State : std::enable_shared_from_this<State> {
    // All are called, and return, with the lock held.
    bool can_run() const { return !taken && !operations.empty(); }
    void run_front(std::unique_lock<std::mutex>& lock);
    void call_worker();

    void work();

    std::mutex mutex;
    std::condition_variable changed;  // for workers: an operation can run, or it is time to end
    std::condition_variable drained;  // for the destructor
    std::deque<Operation> operations;
    std::vector<std::thread> workers;
    int busy_workers = 0;  // running or completing an operation
    int idle_workers = 0;
    bool taken = false;
    bool stop = false;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace ringcomm
