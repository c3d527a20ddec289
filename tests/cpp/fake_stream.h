// CUDA's streams, played by the host: each is a thread that does one thing after the other. What is
// enqueued on a stream that is being captured becomes part of a graph (fake_graph.h).
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace fake {

class Graph;

extern std::atomic<int> uses_of_destroyed_streams;

// The priorities of the streams that are not destroyed; 0 is that of other streams.
std::multiset<int> priorities();

// Counts a use if it is not.
bool is_alive(cudaStream_t stream);

}  // namespace fake

struct CUstream_st {
  CUstream_st();
  ~CUstream_st();

  void push(std::function<void()> operation);
  // On the stream, or in the graph that it is captured in.
  void enqueue(std::function<void()> operation);

  std::shared_ptr<fake::Graph> graph;  // it is being captured in

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};
