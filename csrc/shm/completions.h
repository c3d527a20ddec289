// Runs completions of messages, which may block: each on a thread that has none before it.
//
// Before a thread begins a completion it sees to it that another is there for the next one. So as
// long as they are short one or two threads do, and one that waits for another cannot hold it up.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ringcomm::shm {

class Completions {
 public:
  Completions() : state_(std::make_shared<State>()) {}
  // Waits until all have ended. A completion may be the last to hold the object it belongs to: then
  // the thread that destroys it is not waited for.
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  void run(std::function<void()> completion);

 private:
  // Held by the object and by each of its threads.
  struct State : std::enable_shared_from_this<State> {
    // With the lock held.
    void call_thread();

    void work();

    std::mutex mutex;
    std::condition_variable
        changed;  // for threads: there is something to run, or it is time to end
    std::condition_variable drained;  // for the destructor
    std::deque<std::function<void()>> waiting;
    std::vector<std::thread> threads;
    int idle = 0;  // threads, those that are starting included
    int busy = 0;
    bool stop = false;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace ringcomm::shm
