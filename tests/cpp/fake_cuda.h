// As much of CUDA and NCCL as csrc/nccl/ calls, on the host, for tests where there is no GPU. To be
// included by one source of a test program, which links neither library.
//
// A stream is a thread that does one thing after the other. A group of messages publishes its
// sends, takes what it receives, and waits until its sends are taken, or its communicator aborted.
// Communicators are made when all ranks have asked for them, and say "in progress" until then.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "reduce/device.h"
#include "reduce/host.h"

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool stop = false;
  std::thread thread{[this] { run(); }};

  void push(std::function<void()> operation) {
    std::lock_guard lock(mutex);
    queue.push_back(std::move(operation));
    changed.notify_one();
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

struct CUevent_st {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int recorded = 0, happened = 0;
  };
  std::shared_ptr<State> state = std::make_shared<State>();  // streams may outlive the event
};

namespace fake {

struct Send {
  const void* data;
  std::size_t nbytes;
  bool taken = false;
};

// What the communicators of one group share.
struct World {
  int size = 0;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<Send*>> sends;  // by sender and receiver
  std::map<int, std::shared_ptr<World>> children;
};

inline std::mutex mutex;  // of everything below and in all worlds
inline std::condition_variable changed;
inline std::map<std::string, std::shared_ptr<World>> worlds;
inline int num_ids = 0;
// The next ncclGroupEnd of a communicator's rank fails.
inline std::atomic<int> failing_rank{-1};
inline std::atomic<int> open_comms{0};

struct Operation {
  bool is_send;
  void* data;
  std::size_t nbytes;
  int peer;
  ncclComm_t comm;
  cudaStream_t stream;
};
inline thread_local std::vector<Operation> group;

}  // namespace fake

struct ncclComm {
  int rank;
  std::shared_ptr<fake::World> world;
  int num_children = 0;
  bool mismatch = false;
  bool aborted = false;
  std::vector<std::pair<ncclComm_t*, ncclComm_t>> splitting = {};
};

namespace fake {

// One group on one stream, hence of one communicator.
inline void carry_out(const std::vector<Operation>& operations) {
  std::unique_lock lock(mutex);
  const ncclComm_t comm = operations.front().comm;
  auto& queues = comm->world->sends;
  std::deque<Send> sends;
  for (const Operation& op : operations) {
    if (op.is_send) {
      queues[{comm->rank, op.peer}].push_back(&sends.emplace_back(Send{op.data, op.nbytes}));
    }
  }
  changed.notify_all();
  for (const Operation& op : operations) {
    if (op.is_send) continue;
    auto& queue = queues[{op.peer, comm->rank}];
    changed.wait(lock, [&] { return comm->aborted || !queue.empty(); });
    if (comm->aborted) break;
    Send* send = queue.front();
    queue.pop_front();
    if (send->nbytes != op.nbytes) comm->mismatch = true;
    if (op.nbytes > 0) std::memcpy(op.data, send->data, std::min(op.nbytes, send->nbytes));
    send->taken = true;
    changed.notify_all();
  }
  const auto taken = [](const Send& send) { return send.taken; };
  changed.wait(lock,
               [&] { return comm->aborted || std::all_of(sends.begin(), sends.end(), taken); });
  for (const Operation& op : operations) {
    auto& queue = queues[{comm->rank, op.peer}];
    std::erase_if(queue, [&](Send* send) {
      return std::any_of(sends.begin(), sends.end(), [&](Send& own) { return &own == send; });
    });
  }
}

}  // namespace fake

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::promise<void> reached;
  stream->push([&] { reached.set_value(); });
  reached.get_future().wait();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
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
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto state = event->state;
  std::lock_guard lock(state->mutex);
  stream->push([state, number = ++state->recorded] {
    std::lock_guard lock(state->mutex);
    state->happened = std::max(state->happened, number);
    state->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto state = event->state;
  std::lock_guard lock(state->mutex);
  stream->push([state, number = state->recorded] {
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->happened >= number; });
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::lock_guard lock(event->state->mutex);
  return event->state->happened >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t nbytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  stream->push([=] { std::memcpy(to, from, nbytes); });
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "a failure that was asked for"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::lock_guard lock(fake::mutex);
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, &++fake::num_ids, sizeof(int));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  std::lock_guard lock(fake::mutex);
  auto& world = fake::worlds[std::string(id.internal, sizeof(id.internal))];
  if (!world) world = std::make_shared<fake::World>();
  world->size = size;
  ++world->joined;
  ++fake::open_comms;
  *comm = new ncclComm{rank, world};
  return ncclInProgress;
}
ncclResult_t ncclCommSplit(ncclComm_t parent, int, int, ncclComm_t* comm, ncclConfig_t*) {
  std::lock_guard lock(fake::mutex);
  auto& world = parent->world->children[parent->num_children++];
  if (!world) world = std::make_shared<fake::World>();
  world->size = parent->world->size;
  ++world->joined;
  ++fake::open_comms;
  parent->splitting.push_back({comm, new ncclComm{parent->rank, world}});
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  std::lock_guard lock(fake::mutex);
  *state = comm->world->joined < comm->world->size ? ncclInProgress : ncclSuccess;
  if (comm->mismatch) *state = ncclInvalidUsage;
  for (const auto& [to, child] : comm->splitting) {
    if (child->world->joined < child->world->size) *state = ncclInProgress;
  }
  if (*state != ncclSuccess) return ncclSuccess;
  for (const auto& [to, child] : std::exchange(comm->splitting, {})) *to = child;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    std::lock_guard lock(fake::mutex);
    comm->aborted = true;
    for (const auto& [to, child] : comm->splitting) {
      delete child;
      --fake::open_comms;
    }
  }
  fake::changed.notify_all();
  // What is enqueued still looks at the communicator: it goes with the process.
  static std::vector<std::unique_ptr<ncclComm>> aborted;
  std::lock_guard lock(fake::mutex);
  aborted.emplace_back(comm);
  --fake::open_comms;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  --fake::open_comms;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "a failure that was asked for"; }
const char* ncclGetLastError(ncclComm_t) { return "its details"; }

ncclResult_t ncclGroupStart() {
  fake::group.clear();
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, size_t nbytes, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  fake::group.push_back({true, const_cast<void*>(data), nbytes, peer, comm, stream});
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* data, size_t nbytes, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  fake::group.push_back({false, data, nbytes, peer, comm, stream});
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  std::map<cudaStream_t, std::vector<fake::Operation>> by_stream;
  for (const fake::Operation& operation : std::exchange(fake::group, {})) {
    int failing = operation.comm->rank;
    if (fake::failing_rank.compare_exchange_strong(failing, -1)) return ncclSystemError;
    by_stream[operation.stream].push_back(operation);
  }
  for (const auto& [stream, operations] : by_stream) {
    stream->push([operations = operations] { fake::carry_out(operations); });
  }
  return ncclSuccess;
}

}  // extern "C"

namespace ringcomm {

cudaError_t reduce_device(const Reduction& reduction, const void* const* inputs, int num_inputs,
                          void* const* outputs, int num_outputs, std::size_t count,
                          cudaStream_t stream) {
  stream->push([=, in = std::vector<const void*>(inputs, inputs + num_inputs),
                out = std::vector<void*>(outputs, outputs + num_outputs)] {
    reduce_host(reduction, in.data(), num_inputs, out.data(), num_outputs, count);
  });
  return cudaSuccess;
}

}  // namespace ringcomm
