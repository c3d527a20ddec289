#include "fake_stream.h"

#include <cstring>
#include <future>
#include <map>
#include <utility>

#include "fake_cuda.h"
#include "fake_graph.h"

namespace fake {
namespace {

constexpr int kGreatestPriority = -5;

std::map<cudaStream_t, int> streams;  // the priorities of those that are not destroyed
std::mutex streams_mutex;

}  // namespace

std::atomic<int> uses_of_destroyed_streams{0};

std::multiset<int> priorities() {
  std::lock_guard lock(streams_mutex);
  std::multiset<int> all;
  for (const auto& [stream, priority] : streams) all.insert(priority);
  return all;
}

bool is_alive(cudaStream_t stream) {
  std::lock_guard lock(streams_mutex);
  if (streams.contains(stream)) return true;
  ++uses_of_destroyed_streams;
  return false;
}

}  // namespace fake

CUstream_st::CUstream_st() : thread_([this] { run(); }) {}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void CUstream_st::push(std::function<void()> operation) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  changed_.notify_one();
}

void CUstream_st::enqueue(std::function<void()> operation) {
  if (graph) {
    graph->add(this, std::move(operation));
  } else {
    push(std::move(operation));
  }
}

void CUstream_st::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> operation = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    operation();
    lock.lock();
  }
}

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = fake::kGreatestPriority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = new CUstream_st;
  std::lock_guard lock(fake::streams_mutex);
  fake::streams[*stream] = priority;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    std::lock_guard lock(fake::streams_mutex);
    fake::streams.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (fake::is_forbidden_by_captures()) return fake::returned(cudaErrorStreamCaptureUnsupported);
  std::promise<void> reached;
  stream->push([&] { reached.set_value(); });
  reached.get_future().wait();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t nbytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  stream->enqueue([=] { std::memcpy(to, from, nbytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t nbytes, cudaStream_t stream) {
  stream->enqueue([=] { std::memset(data, value, nbytes); });
  return cudaSuccess;
}

}  // extern "C"
