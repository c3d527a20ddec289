#include "fake_graph.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "fake_cuda.h"
#include "fake_event.h"
#include "fake_stream.h"

namespace fake {
namespace {

std::atomic<unsigned long long> num_graphs{0};
thread_local cudaStreamCaptureMode mode_here = cudaStreamCaptureModeGlobal;

std::mutex captures_mutex;
std::set<Graph*> captures;  // that are active

}  // namespace

// Called when the last graph that holds it goes.
struct UserObject {
  void* data;
  cudaHostFn_t destroy;
};

Graph::Graph(cudaStreamCaptureMode mode) : id(++num_graphs), mode(mode) {}

Graph::~Graph() {
  for (const auto& forget : on_end_) forget();
  for (const UserObject* object : objects_) {
    object->destroy(object->data);
    delete object;
  }
}

int Graph::add(cudaStream_t stream, Node node) {
  node.stream = stream;
  node.previous = last_of(stream);
  nodes_.push_back(std::move(node));
  return last_[stream] = static_cast<int>(nodes_.size()) - 1;
}

int Graph::add(cudaStream_t stream, std::function<void()> body) {
  return add(stream, {.body = [body = std::move(body)](int) { body(); }});
}

int Graph::add_wait(cudaStream_t stream, int node) { return add(stream, {.after = node}); }

int Graph::add_external_record(cudaStream_t stream, std::shared_ptr<EventState> event) {
  return add(stream, {.body = [event](int number) { event->happen(number); },
                      .prepare = [event] { return event->begin_record(); }});
}

int Graph::add_external_wait(cudaStream_t stream, std::shared_ptr<EventState> event) {
  return add(stream, {.body = [event](int number) { event->wait(number); },
                      .prepare = [event] { return event->last(); }});
}

void Graph::retain(UserObject* object) { objects_.push_back(object); }

void Graph::on_end(std::function<void()> forget) { on_end_.push_back(std::move(forget)); }

int Graph::last_of(cudaStream_t stream) const {
  const auto it = last_.find(stream);
  return it == last_.end() ? -1 : it->second;
}

bool Graph::is_joined(cudaStream_t stream) const {
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

void Graph::launch(cudaStream_t stream) {
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

std::shared_ptr<Graph> begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  auto graph = std::make_shared<Graph>(mode);
  graph->streams.insert(stream);
  stream->graph = graph;
  const std::lock_guard lock(captures_mutex);
  captures.insert(graph.get());
  return graph;
}

bool end_capture(const std::shared_ptr<Graph>& graph, cudaStream_t stream) {
  for (const cudaStream_t captured : graph->streams) captured->graph.reset();
  graph->active = false;
  const std::lock_guard lock(captures_mutex);
  captures.erase(graph.get());
  return graph->is_joined(stream) && !graph->invalidated;
}

bool is_forbidden_by_captures() {
  if (mode_here == cudaStreamCaptureModeRelaxed) return false;
  const std::lock_guard lock(captures_mutex);
  bool forbidden = false;
  for (Graph* const graph : captures) {
    const bool is_own = graph->thread == std::this_thread::get_id();
    const bool is_global = graph->mode == cudaStreamCaptureModeGlobal;
    if (graph->mode == cudaStreamCaptureModeRelaxed) continue;
    if (!is_own && !(is_global && mode_here == cudaStreamCaptureModeGlobal)) continue;
    graph->invalidated = forbidden = true;
  }
  return forbidden;
}

}  // namespace fake

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, fake::mode_here);
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

}  // extern "C"
