// CUDA's events, played by the host.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace fake {

class Graph;

extern std::atomic<int> num_timed_events;  // that were made
extern std::atomic<bool> is_lost;  // an illegal access, which every query of an event returns

// What an event stands for; streams and graphs may outlive the event itself.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0, happened = 0;
  bool is_timed = false;
  std::chrono::steady_clock::time_point when{};  // it last happened
  // The last record, if that was captured.
  std::weak_ptr<Graph> graph;
  bool captured = false;
  int node = -1;

  int begin_record();
  void happen(int number);
  int last();
  void wait(int number);
};

}  // namespace fake
