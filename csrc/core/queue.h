// Runs a communicator's collectives, one at a time, in an order that is the same on every rank.
//
// Any free thread carries them out: a caller that finds the queue idle runs its own operation on
// the spot; a caller that waits for a queued one runs what is ahead of it; a worker thread runs
// what no caller waits for.
//
// Completing an operation may run a user's callbacks, and these may submit operations and wait for
// them. When a callback runs, compared with the caller's next call, is chance, and differs from
// rank to rank. So a callback has its operation's place in the order: what it submits runs before
// anything that was queued behind that operation, however early the latter was submitted.
//
//   caller:     1, 2, 3            a callback of 1 submits 1.1, whose callback submits 1.1.1
//   order:      1, 1.1, 1.1.1, 2, 3
//
// A callback may wait for what it has submitted in any way, as workers run it; for what is behind
// its operation only by help().
#pragma once

#include <atomic>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/workers.h"

namespace ringcomm {

class Queue {
 public:
  struct Operation {
    std::function<void()> run;             // in turn; must not throw
    std::function<void()> complete;        // runs the callbacks; must not throw
    std::shared_ptr<void> held = nullptr;  // let go of when both are gone, and what they hold
  };

  Queue() : state_(std::make_shared<State>()) {}
  // Waits until all that is queued is complete. The last holder of a queue may be one of its own
  // operations: then the worker that destroys it is not waited for.
  ~Queue() { state_->end(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Throws Error (kSystem) or std::bad_alloc if a thread or memory is needed that cannot be had.
  // Then the operation is not queued and will never run.
  void submit(Operation operation);

  // Takes the turn if nothing is queued or running; the caller must then call leave(), or let a
  // Turn do so.
  bool try_enter();
  void leave();

  // So that hand_over() leaves its operation to another thread. Throws as submit() does.
  void provide_thread();
  // With the turn: puts an operation before all that is queued, and gives the turn back.
  void hand_over(Operation operation);

  class Turn {
   public:
    explicit Turn(Queue& queue) : queue_(&queue) {}
    ~Turn() { leave(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void leave() {
      if (Queue* const queue = std::exchange(queue_, nullptr)) queue->leave();
    }
    void hand_over(Operation operation) {
      queue_->hand_over(std::move(operation));
      queue_ = nullptr;
    }

   private:
    Queue* queue_;
  };

  // Whether nothing is queued, running, or being completed.
  bool is_idle();

  // Runs and completes the operation whose turn it is, if it is not running yet. False: nothing to
  // do here.
  bool help();

 private:
  struct Entry;
  // What one thread's callbacks have submitted; the first level is for all others.
  struct Level {
    std::thread::id thread = {};
    std::list<Entry> operations = {};
  };
  using Levels = std::list<Level>;
  // An operation brings the level that its callbacks will need, so that to run it takes no memory.
  struct Entry {
    Operation operation;
    Levels level;
  };

  // kTaken: a thread has the turn. kMore: something is queued, or has been and is not complete.
  // Invariant: kMore changes only with the mutex locked, and while it is there, kTaken is, too. So
  // a thread that finds neither takes the turn without the mutex, and if there is no kMore when it
  // gives the turn back, no thread waits for that.
  static constexpr unsigned kTaken = 1, kMore = 2;

  struct State final : Workers {
    // All are called, and return, with the mutex locked.
    bool can_run() const override { return !is_taken() && !empty(); }
    bool empty() const override { return levels.back().operations.empty(); }
    bool is_taken() const { return (turn.load(std::memory_order_relaxed) & kTaken) != 0; }
    void run_one(std::unique_lock<std::mutex>& lock) override {
      run_front(std::prev(levels.end()), lock);
    }
    bool is_callback(const Level& level) const {
      return level.thread == std::this_thread::get_id();
    }
    Levels::iterator level_to_run();
    void run_front(Levels::iterator level, std::unique_lock<std::mutex>& lock);
    void note_if_idle();
    // Has the next operation that can run carried out: by a worker, or by the caller if no thread
    // can be had.
    void have_it_run(std::unique_lock<std::mutex>& lock);

    Levels levels{1};  // one more for each operation that is being completed, the innermost last
    std::atomic<unsigned> turn{0};
  };

  const std::shared_ptr<State> state_;
};

}  // namespace ringcomm
