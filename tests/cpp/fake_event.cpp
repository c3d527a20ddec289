#include "fake_event.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "fake_cuda.h"
#include "fake_graph.h"
#include "fake_stream.h"

namespace fake {

std::atomic<int> num_timed_events{0};
std::atomic<bool> is_lost{false};

int EventState::begin_record() {
  std::lock_guard lock(mutex);
  captured = false;
  return ++recorded;
}

void EventState::happen(int number) {
  std::lock_guard lock(mutex);
  happened = std::max(happened, number);
  when = std::chrono::steady_clock::now();
  changed.notify_all();
}

int EventState::last() {
  std::lock_guard lock(mutex);
  return recorded;
}

void EventState::wait(int number) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return happened >= number; });
}

}  // namespace fake

struct CUevent_st {
  std::shared_ptr<fake::EventState> state = std::make_shared<fake::EventState>();
};

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->state->is_timed = (flags & cudaEventDisableTiming) == 0;
  if ((*event)->state->is_timed) ++fake::num_timed_events;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (!fake::is_alive(stream)) return fake::returned(cudaErrorInvalidResourceHandle);
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
  if (!fake::is_alive(stream)) return fake::returned(cudaErrorInvalidResourceHandle);
  const auto state = event->state;
  std::unique_lock lock(state->mutex);
  if (state->captured && flags != cudaEventWaitExternal) {
    const std::shared_ptr<fake::Graph> graph = state->graph.lock();
    if (!graph || !graph->active) return fake::returned(cudaErrorCapturedEvent);
    if (stream->graph && stream->graph != graph) return fake::returned(cudaErrorStreamCaptureMerge);
    stream->graph = graph;
    graph->streams.insert(stream);
    graph->add_wait(stream, state->node);
    return cudaSuccess;
  }
  if (stream->graph) {
    lock.unlock();
    if (flags != cudaEventWaitExternal) return fake::returned(cudaErrorStreamCaptureIsolation);
    stream->graph->add_external_wait(stream, state);
    return cudaSuccess;
  }
  stream->push([state, number = state->recorded] { state->wait(number); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (fake::is_forbidden_by_captures()) return fake::returned(cudaErrorStreamCaptureUnsupported);
  if (fake::is_lost) return fake::returned(cudaErrorIllegalAddress);
  std::lock_guard lock(event->state->mutex);
  if (event->state->captured) return fake::returned(cudaErrorCapturedEvent);
  return fake::returned(event->state->happened >= event->state->recorded ? cudaSuccess
                                                                         : cudaErrorNotReady);
}

// As CUDA, for events that are timed and have been recorded and happened.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  std::chrono::steady_clock::time_point when[2];
  for (int i = 0; i < 2; ++i) {
    fake::EventState& state = *(i == 0 ? start : end)->state;
    std::lock_guard lock(state.mutex);
    const bool is_valid = state.is_timed && state.recorded > 0 && !state.captured;
    if (!is_valid) return fake::returned(cudaErrorInvalidResourceHandle);
    if (state.happened < state.recorded) return fake::returned(cudaErrorNotReady);
    when[i] = state.when;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(when[1] - when[0]).count();
  return cudaSuccess;
}

}  // extern "C"
