// As much of CUDA as csrc/nccl/ calls, on the host, for tests where there is no GPU. To be included
// by one source of a test program, which links no CUDA.
//
// A stream is a thread that does one thing after the other. What is enqueued on a stream that is
// being captured becomes part of a fake::Graph, which runs on as many threads as streams were
// captured. Of the rules of captures, those are checked that our calls could break: events of the
// world outside are external, and all streams join the first one in the end.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "reduce/device.h"
#include "reduce/host.h"

namespace fake {

class Graph;

// What an event stands for; streams and graphs may outlive the event itself.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0, happened = 0;
  // The last record, if that was captured.
  std::weak_ptr<Graph> graph;
  bool captured = false;
  int node = -1;

  int begin_record() {
    std::lock_guard lock(mutex);
    captured = false;
    return ++recorded;
  }
  void happen(int number) {
    std::lock_guard lock(mutex);
    happened = std::max(happened, number);
    changed.notify_all();
  }
  int last() {
    std::lock_guard lock(mutex);
    return recorded;
  }
  void wait(int number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return happened >= number; });
  }
};

// A graph's user object: called when the last graph that holds it goes.
struct UserObject {
  void* data;
  cudaHostFn_t destroy;
};

// What was captured, and all that can be done with it.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  ~Graph() {
    for (const auto& forget : on_end_) forget();
    for (const UserObject* object : objects_) {
      object->destroy(object->data);
      delete object;
    }
  }

  // Everything below while it is being captured.
  const unsigned long long id = ++num_graphs;
  bool active = true;

  int add(cudaStream_t stream, std::function<void()> body) {
    return add(stream, {.body = [body = std::move(body)](int) { body(); }});
  }
  int add_wait(cudaStream_t stream, int node) { return add(stream, {.after = node}); }
  int add_external_record(cudaStream_t stream, std::shared_ptr<EventState> event) {
    return add(stream, {.body = [event](int number) { event->happen(number); },
                        .prepare = [event] { return event->begin_record(); }});
  }
  int add_external_wait(cudaStream_t stream, std::shared_ptr<EventState> event) {
    return add(stream, {.body = [event](int number) { event->wait(number); },
                        .prepare = [event] { return event->last(); }});
  }
  void retain(UserObject* object) { objects_.push_back(object); }
  void on_end(std::function<void()> forget) { on_end_.push_back(std::move(forget)); }
  int last_of(cudaStream_t stream) const {
    const auto it = last_.find(stream);
    return it == last_.end() ? -1 : it->second;
  }
  std::set<cudaStream_t> streams;

  // Whether everything comes before the end of `stream`.
  bool is_joined(cudaStream_t stream) const {
    std::vector<bool> reached(nodes_.size());
    std::vector<int> next{last_of(stream)};
    while (!next.empty()) {
      const int n = next.back();
      next.pop_back();
      if (n < 0 || reached[n]) continue;
      reached[n] = true;
      next.push_back(nodes_[n].previous);
      next.push_back(nodes_[n].after);
    }
    return std::all_of(reached.begin(), reached.end(), [](bool r) { return r; });
  }

  // Later.
  void launch(cudaStream_t stream);

 private:
  struct Node {
    std::function<void(int number)> body = nullptr;
    std::function<int()> prepare = nullptr;  // when the graph is launched
    int after = -1;                          // a node of another stream
    int previous = -1;                       // in its own
    cudaStream_t stream = nullptr;
  };

  int add(cudaStream_t stream, Node node) {
    node.stream = stream;
    node.previous = last_of(stream);
    nodes_.push_back(std::move(node));
    return last_[stream] = static_cast<int>(nodes_.size()) - 1;
  }

  inline static std::atomic<unsigned long long> num_graphs{0};
  std::vector<Node> nodes_;
  std::map<cudaStream_t, int> last_;
  std::vector<UserObject*> objects_;
  std::vector<std::function<void()>> on_end_;
};

// Graphs as CUDA's handles.
using GraphHandle = std::shared_ptr<Graph>*;
inline std::atomic<int> num_launches{0};

inline std::set<int> contexts;  // devices that were made current
inline std::mutex contexts_mutex;
inline thread_local int current_device = 0;

inline std::set<cudaStream_t> streams;  // that are not destroyed
inline std::mutex streams_mutex;
inline std::atomic<int> uses_of_destroyed_streams{0};

inline bool is_alive(cudaStream_t stream) {
  std::lock_guard lock(streams_mutex);
  if (streams.contains(stream)) return true;
  ++uses_of_destroyed_streams;
  return false;
}

}  // namespace fake

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool stop = false;
  std::shared_ptr<fake::Graph> graph;  // it is being captured in
  std::thread thread{[this] { run(); }};

  void push(std::function<void()> operation) {
    std::lock_guard lock(mutex);
    queue.push_back(std::move(operation));
    changed.notify_one();
  }
  // On the stream, or in the graph that it is captured in.
  void enqueue(std::function<void()> operation) {
    if (graph) {
      graph->add(this, std::move(operation));
    } else {
      push(std::move(operation));
    }
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || !queue.empty(); });
      if (queue.empty()) return;
      const std::function<void()> operation = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      operation();
      lock.lock();
    }
  }
  ~CUstream_st() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_one();
    thread.join();
  }
};

namespace fake {

// For what is compiled on its own.
void enqueue(cudaStream_t stream, std::function<void()> operation) {
  stream->enqueue(std::move(operation));
}

inline std::atomic<int> num_allocations{0};     // that are not freed
inline std::atomic<int> failing_allocation{0};  // counts down to the one that fails
inline thread_local bool failed_here = false;
inline std::atomic<bool> opens_memory{true};  // of other processes

}  // namespace fake

struct CUevent_st {
  std::shared_ptr<fake::EventState> state = std::make_shared<fake::EventState>();
};

struct CUuserObject_st {};

namespace fake {

inline void Graph::launch(cudaStream_t stream) {
  // Events are recorded, and those waited for chosen, when a graph is launched.
  std::vector<int> numbers(nodes_.size());
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].prepare) numbers[n] = nodes_[n].prepare();
  }
  stream->push([self = shared_from_this(), numbers] {
    std::vector<std::promise<void>> done(self->nodes_.size());
    std::vector<std::shared_future<void>> futures;
    for (auto& promise : done) futures.push_back(promise.get_future().share());
    std::vector<std::thread> threads;
    for (const auto& [captured, last] : self->last_) {
      threads.emplace_back([&, captured = captured] {
        for (std::size_t n = 0; n < self->nodes_.size(); ++n) {
          const Node& node = self->nodes_[n];
          if (node.stream != captured) continue;
          if (node.after >= 0) futures[node.after].wait();
          if (node.body) node.body(numbers[n]);
          done[n].set_value();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

inline std::shared_ptr<Graph> begin_capture(cudaStream_t stream) {
  auto graph = std::make_shared<Graph>();
  graph->streams.insert(stream);
  stream->graph = graph;
  return graph;
}

// False where CUDA would refuse: something captured does not come before the end of `stream`.
inline bool end_capture(const std::shared_ptr<Graph>& graph, cudaStream_t stream) {
  for (const cudaStream_t captured : graph->streams) captured->graph.reset();
  graph->active = false;
  return graph->is_joined(stream);
}

}  // namespace fake

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = fake::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  fake::current_device = device;
  std::lock_guard lock(fake::contexts_mutex);
  fake::contexts.insert(device);
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st;
  std::lock_guard lock(fake::streams_mutex);
  fake::streams.insert(*stream);
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
  std::promise<void> reached;
  stream->push([&] { reached.set_value(); });
  reached.get_future().wait();
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = stream->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (!stream->graph) return cudaSuccess;
  *id = stream->graph->id;
  *graph = reinterpret_cast<cudaGraph_t>(stream->graph.get());
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy,
                                 unsigned, unsigned) {
  *object = reinterpret_cast<cudaUserObject_t>(new fake::UserObject{data, destroy});
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned,
                                      unsigned) {
  reinterpret_cast<fake::Graph*>(graph)->retain(reinterpret_cast<fake::UserObject*>(object));
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  fake::begin_capture(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::shared_ptr<fake::Graph> captured = stream->graph;
  const bool joined = fake::end_capture(captured, stream);
  *graph = reinterpret_cast<cudaGraph_t>(new std::shared_ptr(captured));
  return joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  const auto handle = reinterpret_cast<fake::GraphHandle>(graph);
  *executable = reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr(*handle));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  ++fake::num_launches;
  (*reinterpret_cast<fake::GraphHandle>(executable))->launch(stream);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<fake::GraphHandle>(executable);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<fake::GraphHandle>(graph);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (!fake::is_alive(stream)) return cudaErrorInvalidResourceHandle;
  const auto state = event->state;
  if (stream->graph && flags == cudaEventRecordExternal) {
    stream->graph->add_external_record(stream, state);
  } else if (stream->graph) {
    const int node = stream->graph->add(stream, [] {});
    std::lock_guard lock(state->mutex);
    state->graph = stream->graph;
    state->captured = true;
    state->node = node;
  } else {
    stream->push([state, number = state->begin_record()] { state->happen(number); });
  }
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (!fake::is_alive(stream)) return cudaErrorInvalidResourceHandle;
  const auto state = event->state;
  std::unique_lock lock(state->mutex);
  if (state->captured && flags != cudaEventWaitExternal) {
    const std::shared_ptr<fake::Graph> graph = state->graph.lock();
    if (!graph || !graph->active) return cudaErrorCapturedEvent;
    if (stream->graph && stream->graph != graph) return cudaErrorStreamCaptureMerge;
    stream->graph = graph;
    graph->streams.insert(stream);
    graph->add_wait(stream, state->node);
    return cudaSuccess;
  }
  if (stream->graph) {
    lock.unlock();
    if (flags != cudaEventWaitExternal) return cudaErrorStreamCaptureIsolation;
    stream->graph->add_external_wait(stream, state);
    return cudaSuccess;
  }
  stream->push([state, number = state->recorded] { state->wait(number); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::lock_guard lock(event->state->mutex);
  if (event->state->captured) return cudaErrorCapturedEvent;
  return event->state->happened >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
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
cudaError_t cudaMalloc(void** data, size_t nbytes) {
  if (fake::failing_allocation > 0 && --fake::failing_allocation == 0) {
    fake::failed_here = true;
    return cudaErrorMemoryAllocation;
  }
  ++fake::num_allocations;
  *data = std::aligned_alloc(256, (nbytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data != nullptr) --fake::num_allocations;
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t nbytes, unsigned) { return cudaMalloc(data, nbytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  std::memcpy(handle, &data, sizeof(data));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned) {
  if (!fake::opens_memory) return cudaErrorPeerAccessUnsupported;
  ++fake::num_allocations;
  std::memcpy(data, &handle, sizeof(*data));
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  --fake::num_allocations;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return fake::opens_memory ? cudaErrorPeerAccessAlreadyEnabled : cudaErrorPeerAccessUnsupported;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "a failure that was asked for"; }

}  // extern "C"

namespace ringcomm {

cudaError_t reduce_device(const Reduction& reduction, const void* const* inputs, int num_inputs,
                          void* const* outputs, int num_outputs, std::size_t count,
                          cudaStream_t stream) {
  stream->enqueue([=, in = std::vector<const void*>(inputs, inputs + num_inputs),
                   out = std::vector<void*>(outputs, outputs + num_outputs)] {
    std::vector<Copy> copies;
    for (void* const other : std::span(out).subspan(1)) copies.push_back({other});
    reduce_host(reduction, in.data(), num_inputs, out[0], copies, count);
  });
  return cudaSuccess;
}

}  // namespace ringcomm
